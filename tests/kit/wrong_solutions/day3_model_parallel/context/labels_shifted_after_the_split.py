"""FAILS: shard_batch

The last token before each border is to predict the first one behind another border, and each rank loses a label.
"""

right_shard_batch = shard_batch


def shard_batch(tokens, group=None, targets=None):
    own, positions, labels = right_shard_batch(tokens, group, targets)
    if targets is None:
        labels = F.pad(own[:, 1:], (0, 1), value=IGNORE)
    return own, positions, labels
