"""FAILS: full_state_dict

A tied parameter travels once for each of its names.
"""

_full_state_dict = full_state_dict


@torch.no_grad()
def full_state_dict(module):
    seen = set()
    for value in module.state_dict(keep_vars=True).values():
        if id(value) in seen:
            value.detach().full_tensor()
        seen.add(id(value))
    return _full_state_dict(module)
