"""FAILS: DataParallel

One message per parameter: as many latencies as the model has tensors.
"""


class DataParallel(DataParallel):
    def __init__(self, module, bucket_mb=25.0, group=None):
        super().__init__(module, min(bucket_mb, 1e-9), group)
