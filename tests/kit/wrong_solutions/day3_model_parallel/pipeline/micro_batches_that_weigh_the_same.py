"""FAILS: split_batch

Weight 1 / m for each: the mean of means. Two rows of 3 and 1 valid targets with mean losses 1 and 5 give 3.0 in place
of 2.0.
"""

_split_batch = split_batch


def split_batch(inputs, targets, micro_batches, count=valid_targets):
    return [part._replace(weight=1 / micro_batches) for part in _split_batch(inputs, targets, micro_batches, count)]
