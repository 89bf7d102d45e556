"""FAILS: reduce_scatter

All-reduces everything and keeps its own block: right values, twice the bytes.
"""


def reduce_scatter(output, input, group=None):
    rank, size = check(group, output, input)
    if input.numel() != size * output.numel() or overlap(output, input):
        raise ValueError("input needs one block per rank, and none of output's memory")
    total = flat(input).clone()
    ring_all_reduce(total, group)
    flat(output).copy_(total.tensor_split(size)[rank])
