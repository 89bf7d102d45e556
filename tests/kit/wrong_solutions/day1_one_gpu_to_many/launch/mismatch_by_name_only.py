"""FAILS: first_mismatch

Compares what was called and not with which shape: the most common mistake is not seen.
"""

_found = first_mismatch


def first_mismatch(calls_by_rank):
    import dataclasses

    shapeless = [[dataclasses.replace(call, shape=()) for call in calls] for calls in calls_by_rank]
    return _found(shapeless)
