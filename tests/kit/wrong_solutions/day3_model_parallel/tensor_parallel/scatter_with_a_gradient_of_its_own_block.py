"""FAILS: scatter_to_ranks, RowParallelLinear

Plain slicing under autograd: zeros where the blocks of the other ranks are.
"""


def scatter_to_ranks(x, group=None, dim=-1):
    return own_block(x, dim, group)
