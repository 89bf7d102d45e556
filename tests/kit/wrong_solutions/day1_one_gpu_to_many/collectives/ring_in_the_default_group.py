"""FAILS: ring_all_reduce

Forgets to hand the group on: right as long as the group is the default one.
"""


def ring_all_reduce(tensor, group=None, async_op=False):
    _, size = check(group, tensor)
    chunks = flat(tensor).tensor_split(size)
    tag = next_tag(group)

    def both_halves():
        reduce_scatter_chunks(chunks, chunks, None, tag)
        all_gather_chunks(chunks, None, tag)

    return Handle(both_halves, tensor.device) if async_op else both_halves()
