"""FAILS: all_gather, gather_from_ranks, scatter_to_ranks

Right, at twice the traffic: every block is summed with the zeros of all others.
"""


def all_gather(tensor, dim, group=None):
    rank, size = position(group)
    if size == 1:
        return tensor
    blocks = tensor.new_zeros(size, *tensor.shape)
    blocks[rank] = tensor
    dist.all_reduce(blocks, group=group)
    return torch.cat(blocks.unbind(), dim)
