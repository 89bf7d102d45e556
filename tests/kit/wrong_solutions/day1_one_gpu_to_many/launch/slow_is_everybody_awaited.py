"""FAILS: slow_ranks

Also names ranks that wait for the slow one themselves, and one that has left.
"""


def slow_ranks(calls_by_rank):
    at = stuck(calls_by_rank)
    awaited = sorted({other for rank in at for other in waits_for(rank, at)})
    waiting = {late: tuple(rank for rank in at if late in waits_for(rank, at)) for late in awaited}
    return [Slow(late, ranks, at[ranks[0]]) for late, ranks in waiting.items()]
