"""FAILS: scaling_table

Sorts the caller's list in place, who may have other plans with its order.
"""

_table = scaling_table


def scaling_table(measurements):
    measurements.sort(key=lambda each: each.ranks)
    return _table(measurements)
