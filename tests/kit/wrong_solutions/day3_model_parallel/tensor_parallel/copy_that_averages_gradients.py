"""FAILS: copy_to_ranks, ColumnParallelLinear, ParallelAttention, ParallelMLP, shard_transformer

As in data parallelism. But the ranks hold parts of one sum, not samples of one mean.
"""


def copy_to_ranks(x, group=None):
    size = position(group)[1]
    return Mirrored.apply(x, unchanged, lambda gradient: all_reduce(gradient, group) / size)
