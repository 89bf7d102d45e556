"""FAILS: interleaved

All micro-batches through one chunk before the next chunk begins: the bubble comes back, and all micro-batches are in
flight.
"""


def interleaved(stages, micro_batches, chunks):
    _require_positive(stages=stages, micro_batches=micro_batches, chunks=chunks)
    if micro_batches % stages:
        raise ValueError("no multiple")
    if chunks == 1:
        return one_forward_one_backward(stages, micro_batches)
    actions = []
    total = micro_batches * chunks
    for rank in range(stages):
        own = range(rank, stages * chunks, stages)
        groups = [range(micro_batches)]
        forwards = iter([Action(stage, "F", m) for group in groups for stage in own for m in group])
        backwards = iter([Action(stage, "B", m) for group in groups for stage in reversed(own) for m in group])
        warm_up = min(2 * (stages - 1 - rank) + (chunks - 1) * stages, total)
        kinds = "F" * warm_up + "FB" * (total - warm_up) + "B" * warm_up
        actions.append(tuple(next(forwards if kind == "F" else backwards) for kind in kinds))
    placement = tuple(stage % stages for stage in range(stages * chunks))
    return Schedule("interleaved", placement, micro_batches, tuple(actions))
