"""FAILS: shard_loss

Each rank divides by its own labels and by the number of ranks: a label on a rank with few of them counts more.
"""


def shard_loss(logits, labels, group=None):
    total = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE, reduction="sum")
    return total / (labels != IGNORE).sum().clamp(min=1) / position(group)[1]
