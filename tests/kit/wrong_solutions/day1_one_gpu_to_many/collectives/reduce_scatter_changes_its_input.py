"""FAILS: reduce_scatter

Sums up inside the caller's input, which the caller may still need.
"""


def reduce_scatter(output, input, group=None):
    rank, size = check(group, output, input)
    if input.numel() != size * output.numel() or overlap(output, input):
        raise ValueError("input needs one block per rank, and none of output's memory")
    chunks = flat(input).tensor_split(size)
    reduce_scatter_chunks(chunks, chunks, group)
    flat(output).copy_(chunks[rank])
