"""FAILS: first_mismatch

Looks inside groups only. Two ranks that take two groups in different orders wait for each other, and nobody is named.
"""


def first_mismatch(calls_by_rank):
    at = stuck(calls_by_rank)
    for call in at.values():
        here = [rank for rank in call.ranks if rank in at and at[rank].ranks == call.ranks]
        right = Counter(at[rank].kind for rank in here).most_common(1)[0][0]
        if wrong := [rank for rank in here if at[rank].kind != right]:
            return accuse(wrong[0], calls_by_rank, [rank for rank in here if at[rank].kind == right])
    awaited = Counter(other for rank in at for other in waits_for(rank, at))
    if gone := [rank for rank in awaited if has_left(calls_by_rank[rank])]:
        return accuse(min(gone), calls_by_rank, [rank for rank in at if min(gone) in waits_for(rank, at)])
    return None
