"""FAILS: shard_batch

Every rank counts its own tokens from 0: the rotary embedding believes that the shards lie on top of each other.
"""

right_shard_batch = shard_batch


def shard_batch(tokens, group=None, targets=None):
    own, positions, labels = right_shard_batch(tokens, group, targets)
    return own, torch.arange(len(positions)), labels
