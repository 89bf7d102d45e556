"""FAILS: meet

One name space for all attempts: after a restart, ranks find the addresses of processes that are gone.
"""

_meet = meet


def meet(environment, timeout):
    import dataclasses

    return _meet(dataclasses.replace(environment, attempt=0), timeout)
