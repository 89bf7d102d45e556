"""FAILS: zigzag_positions, zigzag_split, zigzag_merge, shard_batch

The r-th of N equal parts: the last rank computes almost 2 N times as much as the first.
"""


def zigzag_positions(sequence, rank, ranks):
    require_equal_parts(sequence, 2 * ranks)
    return torch.arange(sequence).chunk(ranks)[rank]
