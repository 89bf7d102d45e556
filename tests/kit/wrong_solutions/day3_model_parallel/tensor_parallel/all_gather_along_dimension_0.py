"""FAILS: all_gather, gather_from_ranks, scatter_to_ranks, ColumnParallelLinear, RowParallelLinear

The blocks in the order in which they lie in memory, whatever the dimension.
"""


def all_gather(tensor, dim, group=None):
    _, size = position(group)
    if size == 1:
        return tensor
    blocks = tensor.new_empty(size, *tensor.shape)
    all_gather_single(blocks.view(-1), tensor.contiguous().view(-1), group)
    shape = list(tensor.shape)
    shape[dim] *= size
    return blocks.view(shape)
