"""FAILS: assign_buckets, DataParallel

The bucket size is ignored: nothing leaves before the very last gradient is there.
"""


def assign_buckets(tensors, bucket_bytes):
    kinds = {}
    for tensor in reversed(tensors):
        kinds.setdefault((tensor.dtype, tensor.device), []).append(tensor)
    return list(kinds.values())
