"""FAILS: checkpoint

Calls the function. All gradients are right and nothing is saved.
"""


def checkpoint(fn, *args):
    return fn(*args)
