"""FAILS: copy_to_ranks, ColumnParallelLinear, ParallelAttention, ParallelMLP, shard_transformer

The classic: forward is right, the loss falls, and every layer below gets its own rank's part of the gradient.
"""


def copy_to_ranks(x, group=None):
    return x
