"""FAILS: observe_step, measure_strategy

Never begins a new peak: a model that is whole before it is sharded counts as if it always were.
"""


def observe_step(build, batch):
    with PeakMemory() as memory:
        step = build()
        losses = [step(batch).detach() for _ in range(WARM_UP)]
        with Traffic() as traffic:
            losses.append(step(batch).detach())
    return step, Observation([loss.item() for loss in losses], memory.peak_bytes, traffic.sent_bytes())
