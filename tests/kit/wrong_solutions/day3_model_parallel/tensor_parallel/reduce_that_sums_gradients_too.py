"""FAILS: reduce_from_ranks, RowParallelLinear, VocabParallelEmbedding, ParallelAttention, ParallelMLP

What `torch.distributed.nn.functional.all_reduce` does: each rank's copy of the output counts as another output. All
ranks have the same loss, so gradients are N times too large.
"""


def reduce_from_ranks(x, group=None):
    return Mirrored.apply(x, partial(all_reduce, group=group), partial(all_reduce, group=group))
