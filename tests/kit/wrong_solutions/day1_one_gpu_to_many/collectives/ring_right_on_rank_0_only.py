"""FAILS: ring_all_reduce

After the first half every rank sends its chunk to rank 0, which has the whole sum; the others keep partial ones.
"""


def ring_all_reduce(tensor, group=None, async_op=False):
    rank, size = check(group, tensor)
    chunks = flat(tensor).tensor_split(size)
    tag = next_tag(group)

    def reduce_to_rank_0():
        reduce_scatter_chunks(chunks, chunks, group, tag)
        if rank == 0:
            exchange(group, receives=[(chunks[peer], peer) for peer in range(1, size)], tag=tag)
        else:
            exchange(group, sends=[(chunks[rank], 0)], tag=tag)

    return Handle(reduce_to_rank_0, tensor.device) if async_op else reduce_to_rank_0()
