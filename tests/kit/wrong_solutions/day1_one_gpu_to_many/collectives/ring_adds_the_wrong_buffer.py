"""FAILS: ring_all_reduce

Adds what comes in to its chunk, but passes on its own piece instead of the partial sum. With 2 ranks there is nothing
to pass on, so it is right; with 4 ranks of 1, 2, 3, 4 each chunk has the sum of two neighbours: 3, 5, 7 or 5.
"""


def ring_all_reduce(tensor, group=None, async_op=False):
    rank, size = check(group, tensor)
    chunks = flat(tensor).tensor_split(size)
    own = flat(tensor).clone().tensor_split(size)
    tag = next_tag(group)

    def both_halves():
        incoming = torch.empty_like(chunks[0])
        for step in range(1, size):
            outgoing, index = own[(rank - step) % size], (rank - step - 1) % size
            received = incoming[: chunks[index].numel()]
            exchange(group, [(outgoing, (rank + 1) % size)], [(received, (rank - 1) % size)], tag)
            chunks[index].add_(received)
        all_gather_chunks(chunks, group, tag)

    return Handle(both_halves, tensor.device) if async_op else both_halves()
