"""FAILS: local_rows, ShardedLayer.shard, ShardedLayer.unshard, ShardedLayer.reshard, ShardedLayer.finish_reduction, shard_module

An N-th rounded down, and the last rank takes the rest: DTensor and torch.chunk round up.
"""


def local_rows(rows, rank, ranks):
    if rows < 0 or not 0 <= rank < ranks:
        raise ValueError(f"{rows}, {rank}, {ranks}")
    each = rows // ranks
    return slice(rank * each, rows if rank == ranks - 1 else (rank + 1) * each)
