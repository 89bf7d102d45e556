"""FAILS: first_mismatch

Does nothing: no test that only expects None may be enough for points.
"""


def first_mismatch(calls_by_rank):
    return None
