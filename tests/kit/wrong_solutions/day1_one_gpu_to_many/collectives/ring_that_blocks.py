"""FAILS: ring_all_reduce

Does all its rounds and then returns a handle on which there is nothing to wait for.
"""


def ring_all_reduce(tensor, group=None, async_op=False):
    _, size = check(group, tensor)
    chunks = flat(tensor).tensor_split(size)
    tag = next_tag(group)
    reduce_scatter_chunks(chunks, chunks, group, tag)
    all_gather_chunks(chunks, group, tag)
    return Handle(lambda: None, tensor.device) if async_op else None
