"""FAILS: shard_module

Any dtype will do, also one of integers.
"""


def is_floating_dtype(dtype):
    return isinstance(dtype, torch.dtype)
