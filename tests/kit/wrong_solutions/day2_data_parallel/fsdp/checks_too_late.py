"""FAILS: shard_module

Bad input is found out after a barrier: ranks whose input is good have already begun to wait.
"""

_shard_module = shard_module


def shard_module(module, *args, **kwargs):
    dist.barrier()
    return _shard_module(module, *args, **kwargs)
