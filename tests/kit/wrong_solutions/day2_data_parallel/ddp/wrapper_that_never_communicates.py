"""FAILS: DataParallel, DataParallel.no_sync, DataParallel.join, Bucket.collect

It has every method, it trains, its loss falls: N ranks train N models.
"""


class DataParallel(nn.Module):
    def __init__(self, module, bucket_mb=25.0, group=None):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)

    @contextmanager
    def no_sync(self):
        yield

    @contextmanager
    def join(self):
        yield
