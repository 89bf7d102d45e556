"""FAILS: load_full_state_dict

Every rank loads its rows from a state of its own. Ranks other than the first have none.
"""


@torch.no_grad()
def load_full_state_dict(module, state):
    require_layers(module)
    own = module.state_dict(keep_vars=True)
    if complaint := find_difference(own, state):
        raise ValueError(complaint)
    for name, value in own.items():
        value.copy_(distribute_tensor(state[name], value.device_mesh, value.placements))
