"""FAILS: one_forward_one_backward

GPipe under the name of 1F1B: the same bubble, the same gradients, and all micro-batches in flight.
"""


def one_forward_one_backward(stages, micro_batches):
    plan = gpipe(stages, micro_batches)
    return Schedule("1F1B", plan.placement, micro_batches, plan.actions)
