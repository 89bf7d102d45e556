"""FAILS: full_state_dict

Rank 0 wants the state, so only rank 0 gathers: it waits for rows that nobody sends.
"""

_full_state_dict = full_state_dict


def full_state_dict(module):
    layers = require_layers(module)
    return _full_state_dict(module) if dist.get_rank(layers[0].group) == 0 else {}
