"""FAILS: own_block, ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding

chunk takes any size: the last rank gets less, or nothing and an IndexError.
"""


def own_block(tensor, dim, group=None, replicas=1):
    rank, size = position(group)
    return tensor.chunk(size // replicas, dim)[rank // replicas]
