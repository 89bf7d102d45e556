"""FAILS: first_mismatch

Rank 0 is always right: when rank 0 is the odd one, rank 1 is blamed.
"""


def first_mismatch(calls_by_rank):
    at = stuck(calls_by_rank)
    for call in at.values():
        here = [rank for rank in call.ranks if rank in at and at[rank].ranks == call.ranks]
        if wrong := [rank for rank in here if at[rank].kind != at[here[0]].kind]:
            return accuse(wrong[0], calls_by_rank, [rank for rank in here if at[rank].kind == at[here[0]].kind])
    awaited = Counter(other for rank in at for other in waits_for(rank, at))
    if gone := [rank for rank in awaited if has_left(calls_by_rank[rank])]:
        return accuse(min(gone), calls_by_rank, [rank for rank in at if min(gone) in waits_for(rank, at)])
    if at and not slow_ranks(calls_by_rank):
        most = min(awaited, key=lambda rank: (-awaited[rank], rank))
        return accuse(most, calls_by_rank, [rank for rank in at if most in waits_for(rank, at)])
    return None
