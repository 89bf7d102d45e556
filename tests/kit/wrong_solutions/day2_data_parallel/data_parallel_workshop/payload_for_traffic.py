"""FAILS: observe_step, measure_strategy

Takes the payload of the calls for what a rank sends.
"""


def observe_step(build, batch):
    with PeakMemory() as memory:
        step = build()
        losses = [step(batch).detach() for _ in range(WARM_UP)]
        memory.reset_peak()
        with Traffic() as traffic:
            losses.append(step(batch).detach())
    return step, Observation([loss.item() for loss in losses], memory.peak_bytes, traffic.payload_bytes())
