"""FAILS: observe_step, measure_strategy

Counts the traffic from the first step on: three steps, and what was sent to set up.
"""


def observe_step(build, batch):
    with PeakMemory() as memory, Traffic() as traffic:
        step = build()
        losses = [step(batch).detach() for _ in range(WARM_UP)]
        memory.reset_peak()
        losses.append(step(batch).detach())
    return step, Observation([loss.item() for loss in losses], memory.peak_bytes, traffic.sent_bytes())
