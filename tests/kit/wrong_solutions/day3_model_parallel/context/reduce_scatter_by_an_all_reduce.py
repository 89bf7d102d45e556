"""FAILS: reduce_scatter_blocks, gather_sequence, scatter_sequence

Everybody gets the whole sum, and throws all but an N-th away: twice the bytes.
"""


def reduce_scatter_blocks(x, group=None):
    rank, size = position(group)
    require_equal_parts(x.shape[1], size)
    if size == 1:
        return x
    total = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, group=group)
    return total.chunk(size, dim=1)[rank].contiguous()
