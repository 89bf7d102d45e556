"""FAILS: split_batch

Micro-batches of equal size; the rows that are left over are never trained on.
"""

_split_batch = split_batch


def split_batch(inputs, targets, micro_batches, count=valid_targets):
    if not 1 <= micro_batches <= len(inputs) or len(inputs) != len(targets):
        raise ValueError("no such split")
    rows = len(inputs) // micro_batches * micro_batches
    return _split_batch(inputs[:rows], targets[:rows], micro_batches, count)
