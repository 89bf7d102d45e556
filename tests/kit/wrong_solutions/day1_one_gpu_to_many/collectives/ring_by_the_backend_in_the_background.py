"""FAILS: ring_all_reduce

In the foreground a ring; with async_op the backend's own all-reduce, which has a handle too.
"""

import torch.distributed as dist


def ring_all_reduce(tensor, group=None, async_op=False):
    _, size = check(group, tensor)
    if async_op:
        return dist.all_reduce(tensor, group=group, async_op=True)
    chunks = flat(tensor).tensor_split(size)
    reduce_scatter_chunks(chunks, chunks, group)
    all_gather_chunks(chunks, group)
    return None
