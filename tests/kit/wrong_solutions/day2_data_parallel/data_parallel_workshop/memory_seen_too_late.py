"""FAILS: observe_step, measure_strategy

Begins to follow memory after the set-up: what nobody touches in the step takes up room all the same, and is not seen.
"""


def observe_step(build, batch):
    step = build()
    losses = [step(batch).detach() for _ in range(WARM_UP)]
    with PeakMemory() as memory, Traffic() as traffic:
        losses.append(step(batch).detach())
    return step, Observation([loss.item() for loss in losses], memory.peak_bytes, traffic.sent_bytes())
