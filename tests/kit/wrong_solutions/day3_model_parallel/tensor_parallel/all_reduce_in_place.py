"""FAILS: all_reduce, copy_to_ranks, reduce_from_ranks

Saves a copy and overwrites what its caller still holds; in backward a gradient that others add to.
"""


def all_reduce(tensor, group=None):
    if position(group)[1] > 1:
        if not tensor.is_contiguous():
            tensor.copy_(all_reduce(tensor.contiguous(), group))
        else:
            dist.all_reduce(tensor.detach(), group=group)
    return tensor
