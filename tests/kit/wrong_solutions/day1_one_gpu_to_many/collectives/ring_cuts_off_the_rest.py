"""FAILS: ring_all_reduce

Chunks of n // N elements: the last n % N elements are never summed.
"""


def ring_all_reduce(tensor, group=None, async_op=False):
    _, size = check(group, tensor)
    numel = tensor.numel() // size
    chunks = [flat(tensor)[rank * numel : (rank + 1) * numel] for rank in range(size)]
    tag = next_tag(group)

    def both_halves():
        reduce_scatter_chunks(chunks, chunks, group, tag)
        all_gather_chunks(chunks, group, tag)

    return Handle(both_halves, tensor.device) if async_op else both_halves()
