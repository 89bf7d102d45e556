"""FAILS: checkpoint

The built-in one: right in everything, and not built.
"""


def checkpoint(fn, *args):
    import torch.utils.checkpoint

    return torch.utils.checkpoint.checkpoint(fn, *args, use_reentrant=False)
