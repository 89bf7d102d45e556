"""FAILS: slow_ranks

Ranks in other groups make fewer calls without anybody waiting for them; and one that waits itself is no cause.
"""


def slow_ranks(calls_by_rank):
    at = stuck(calls_by_rank)
    most = max(map(len, calls_by_rank), default=0)
    late = [rank for rank, calls in enumerate(calls_by_rank) if len(calls) < most]
    waiting = tuple(rank for rank in at if rank not in late)
    return [Slow(rank, waiting, at[waiting[0]]) for rank in late] if waiting else []
