"""FAILS: load_full_state_dict

What does not fit is skipped: the model goes on training with weights that nobody saved.
"""


def find_difference(own, state):
    return ""


_load_full_state_dict = load_full_state_dict


def load_full_state_dict(module, state):
    own = module.state_dict(keep_vars=True)
    fits = {n: state[n] for n in own if n in state and state[n].shape == own[n].shape}
    zeros = {n: torch.zeros(value.shape) for n, value in own.items() if n not in fits}
    _load_full_state_dict(module, fits | zeros)
