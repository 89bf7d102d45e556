"""FAILS: mfu

Hardware FLOPs under the name of MFU: recomputing everything looks like a third more speed.
"""


def mfu(config, step, gpu):
    return hfu(config, step, gpu, "full")
