"""FAILS: DataParallel.no_sync

Every micro-batch is averaged. The result is the same, the traffic is not: accumulation over k micro-batches sends k
times as much.
"""


class DataParallel(DataParallel):
    @contextmanager
    def no_sync(self):
        yield
