"""FAILS: one_forward_one_backward

Warms up with p - r forwards and then takes turns, a forward first: one micro-batch more in flight than needed.
"""


def one_forward_one_backward(stages, micro_batches):
    _require_positive(stages=stages, micro_batches=micro_batches)
    actions = []
    for rank in range(stages):
        warm_up = min(stages - rank, micro_batches)
        kinds = "F" * warm_up + "FB" * (micro_batches - warm_up) + "B" * warm_up
        order = {"F": iter(range(micro_batches)), "B": iter(range(micro_batches))}
        actions.append(tuple(Action(rank, kind, next(order[kind])) for kind in kinds))
    return Schedule("1F1B", tuple(range(stages)), micro_batches, tuple(actions))
