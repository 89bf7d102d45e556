"""FAILS: gpipe

Backwards in reverse, as autograd would: the last stage begins with the micro-batch whose forward came last, so all
activations are held longest.
"""


def gpipe(stages, micro_batches):
    _require_positive(stages=stages, micro_batches=micro_batches)
    order = range(micro_batches)
    actions = tuple(
        (*(Action(rank, "F", m) for m in order), *(Action(rank, "B", m) for m in reversed(order)))
        for rank in range(stages)
    )
    return Schedule("GPipe", tuple(range(stages)), micro_batches, actions)
