"""FAILS: first_mismatch

A rank that is through is accused, though those who still wait do not wait for it.
"""

_found = first_mismatch


def first_mismatch(calls_by_rank):
    gone = [rank for rank, calls in enumerate(calls_by_rank) if has_left(calls)]
    at = stuck(calls_by_rank)
    if gone and at:
        return _found(calls_by_rank) or accuse(gone[0], calls_by_rank, list(at))
    return _found(calls_by_rank)
