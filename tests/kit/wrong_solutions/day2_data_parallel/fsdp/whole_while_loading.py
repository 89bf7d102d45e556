"""FAILS: shard_module

load_state_dict writes into layers that an earlier forward has left whole: the shards stay as they were.
"""

_shard_module = shard_module


def shard_module(module, *args, **options):
    module = _shard_module(module, *args, **options)
    module._load_state_dict_pre_hooks.clear()
    return module
