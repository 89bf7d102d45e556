"""FAILS: interleaved

Each rank holds neighbouring stages, which is one long stage again: a micro-batch meets every rank once, and the line
fills as slowly as before.
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
        own = range(rank * chunks, (rank + 1) * chunks)
        groups = [range(first, first + stages) for first in range(0, micro_batches, stages)]
        forwards = iter([Action(stage, "F", m) for group in groups for stage in own for m in group])
        backwards = iter([Action(stage, "B", m) for group in groups for stage in reversed(own) for m in group])
        warm_up = min(2 * (stages - 1 - rank) + (chunks - 1) * stages, total)
        kinds = "F" * warm_up + "FB" * (total - warm_up) + "B" * warm_up
        actions.append(tuple(next(forwards if kind == "F" else backwards) for kind in kinds))
    placement = tuple(stage // chunks for stage in range(stages * chunks))
    return Schedule("interleaved", placement, micro_batches, tuple(actions))
