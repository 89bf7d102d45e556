"""FAILS: ring_all_reduce

Two rings in flight share one tag: a rank takes a message of the second for one of the first.
"""


def next_tag(group):
    return 0
