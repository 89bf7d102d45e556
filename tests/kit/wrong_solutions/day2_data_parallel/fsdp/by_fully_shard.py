"""FAILS: shard_module, ShardedLayer.pre_forward, ShardedLayer.pre_backward, ShardedLayer.post_backward, ShardedLayer.post_forward, ShardedLayer.shard, no_sync, full_state_dict, load_full_state_dict

torch's own, called by the learner.
"""


def shard_module(module, group=None, reshard_after_forward=True, mixed_precision=None, offload=False, prefetch=1):
    from torch.distributed.fsdp import fully_shard

    return fully_shard(module, reshard_after_forward=reshard_after_forward)
