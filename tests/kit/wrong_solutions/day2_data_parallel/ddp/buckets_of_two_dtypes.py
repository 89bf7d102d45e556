"""FAILS: assign_buckets, DataParallel

Filled by size alone: float64 and bfloat16 gradients share a buffer that has one dtype.
"""


def assign_buckets(tensors, bucket_bytes):
    buckets, filling = [], []
    for tensor in reversed(tensors):
        filling.append(tensor)
        if sum(member.nbytes for member in filling) >= bucket_bytes:
            buckets.append(filling)
            filling = []
    return [*buckets, filling] if filling else buckets
