"""FAILS: all_gather

Every rank sends its block to all the others itself: as many bytes as the ring, but over all links at once, where the
ring needs only those between neighbours.
"""


def all_gather(output, input, group=None):
    rank, size = check(group, output, input)
    if output.numel() != size * input.numel():
        raise ValueError("output needs one block per rank")
    blocks = flat(output).tensor_split(size)
    blocks[rank].copy_(flat(input))
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        exchange(group, sends=[(blocks[rank], to)], receives=[(blocks[source], source)])
