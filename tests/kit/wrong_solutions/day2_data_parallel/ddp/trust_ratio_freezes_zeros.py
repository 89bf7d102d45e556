"""FAILS: trust_ratio, LARS, LAMB

The bare quotient: a bias that starts at zero has ratio 0 and never moves.
"""


def trust_ratio(weight_norm, update_norm):
    return weight_norm / update_norm.clamp(min=1e-12)
