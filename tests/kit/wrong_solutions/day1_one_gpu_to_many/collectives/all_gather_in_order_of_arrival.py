"""FAILS: all_gather

Blocks lie in the order in which they came in, own one first: right on one rank of each group, if at all.
"""


def all_gather(output, input, group=None):
    rank, size = check(group, output, input)
    if output.numel() != size * input.numel():
        raise ValueError("output needs one block per rank")
    blocks = flat(output).tensor_split(size)
    blocks[0].copy_(flat(input))
    for step in range(size - 1):
        exchange(group, sends=[(blocks[step], (rank + 1) % size)], receives=[(blocks[step + 1], (rank - 1) % size)])
