"""FAILS: load_full_state_dict

New parameters take the place of the old ones: an optimiser made before steps the old.
"""

_load_full_state_dict = load_full_state_dict


def load_full_state_dict(module, state):
    _load_full_state_dict(module, state)
    for layer in sharded_layers(module):
        fresh = [nn.Parameter(shard.detach().clone(), requires_grad=shard.requires_grad) for shard in layer.shards]
        layer.register(fresh)
        layer.shards = fresh
