"""FAILS: combine, ExpertParallelMoE, average_gradients, expert_layout

Rows are taken as they lie, sorted by expert, for the claims token by token: no permutation is undone.
"""

_combine = combine


def combine(rows, slots, gates):
    return _combine(rows, slots.sort().values, gates)
