"""FAILS: full_state_dict

Buffers, and on one rank parameters too, are handed out as they are: the next step changes what was saved.
"""


@torch.no_grad()
def full_state_dict(module):
    is_first = dist.get_rank(require_layers(module)[0].group) == 0
    state, gathered = {}, {}
    for name, value in module.state_dict(keep_vars=True).items():
        if id(value) not in gathered:
            gathered[id(value)] = value.detach().full_tensor() if isinstance(value, DTensor) else value.detach()
        state[name] = gathered[id(value)]
    return state if is_first else {}
