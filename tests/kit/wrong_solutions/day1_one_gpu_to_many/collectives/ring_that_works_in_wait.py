"""FAILS: ring_all_reduce

Returns at once, and does all its rounds in `wait`: nothing is hidden behind the computation before it.
"""


class Lazy:
    def __init__(self, call):
        self.wait = call


def ring_all_reduce(tensor, group=None, async_op=False):
    _, size = check(group, tensor)
    chunks = flat(tensor).tensor_split(size)
    tag = next_tag(group)

    def both_halves():
        reduce_scatter_chunks(chunks, chunks, group, tag)
        all_gather_chunks(chunks, group, tag)

    return Lazy(both_halves) if async_op else both_halves()
