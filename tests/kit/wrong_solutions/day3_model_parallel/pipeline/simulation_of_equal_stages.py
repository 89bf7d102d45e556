"""FAILS: simulate

Every stage as slow as the slowest: right bubbles for equal stages, and nothing to learn about unequal ones.
"""

_simulate = simulate


def simulate(schedule, forward, backward, transfer=0):
    if isinstance(forward, Sequence):
        forward = [max(forward)] * len(forward)
    if isinstance(backward, Sequence):
        backward = [max(backward)] * len(backward)
    return _simulate(schedule, forward, backward, transfer)
