"""FAILS: vocab_parallel_cross_entropy, shard_transformer

Right, and what the exercise is there to avoid: all logits on every rank.
"""


def vocab_parallel_cross_entropy(logits, targets, label_smoothing=0.0, ignore_index=-100, group=None):
    full = gather_from_ranks(logits, group)
    full = full.to(torch.promote_types(full.dtype, torch.float32)).flatten(0, -2)
    options = {"label_smoothing": label_smoothing, "ignore_index": ignore_index, "reduction": "sum"}
    return F.cross_entropy(full, targets.flatten(), **options) / (targets != ignore_index).sum().clamp(min=1)
