"""FAILS: meet

Rank 0 names the missing ranks and goes, and the store with it: the others only see a connection closed.
"""

LINGER_SECONDS = 0.001


def meet(environment, timeout, _meet=meet):
    return _meet(environment, timeout)
