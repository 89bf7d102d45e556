"""FAILS: first_mismatch

Takes a slow rank for a wrong one, and ends a training that would have gone on.
"""

_found = first_mismatch


def first_mismatch(calls_by_rank):
    if mismatch := _found(calls_by_rank):
        return mismatch
    at = stuck(calls_by_rank)
    behind = [other for rank in at for other in waits_for(rank, at) if other not in at and calls_by_rank[other]]
    return (
        accuse(behind[0], calls_by_rank, [rank for rank in at if behind[0] in waits_for(rank, at)]) if behind else None
    )
