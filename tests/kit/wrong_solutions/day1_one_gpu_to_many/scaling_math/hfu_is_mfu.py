"""FAILS: hfu

The argument is taken and not used.
"""


def hfu(config, step, gpu, recompute):
    return mfu(config, step, gpu)
