"""FAILS: combine, ExpertParallelMoE, average_gradients, expert_layout

The sum of the answers: every chosen expert counts alike, and the router gets no gradient through it.
"""

_combine = combine


def combine(rows, slots, gates):
    return _combine(rows, slots, torch.ones_like(gates) + 0 * gates)
