"""FAILS: full_state_dict

A key head that two ranks hold is joined twice.
"""


def full_state_dict(model):
    cuts = cuts_of(model)
    return {
        name: all_gather(tensor, cuts[name].dim, cuts[name].group) if name in cuts else tensor
        for name, tensor in model.state_dict().items()
    }
