"""FAILS: ring_all_reduce

Calls the built-in collective.
"""


def ring_all_reduce(tensor, group=None, async_op=False):
    check(group, tensor)
    return dist.all_reduce(tensor, group=group, async_op=async_op)
