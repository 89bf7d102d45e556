"""FAILS: reduce_scatter_chunks, reduce_scatter, ring_all_reduce

Every rank starts with its own chunk, the textbook's picture: the sum of chunk r then ends at rank r - 1.
"""


def reduce_scatter_chunks(chunks, sums, group, tag=0):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    right, left = (rank + 1) % size, (rank - 1) % size
    scratch = torch.empty_like(chunks[0])
    partial = sums[rank].copy_(chunks[rank])
    for step in range(1, size):
        index = (rank - step) % size
        incoming = scratch[: chunks[index].numel()]
        exchange(group, sends=[(partial, right)], receives=[(incoming, left)], tag=tag)
        partial = torch.add(chunks[index], incoming, out=sums[index])
