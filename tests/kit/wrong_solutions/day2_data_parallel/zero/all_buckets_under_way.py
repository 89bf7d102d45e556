"""FAILS: ZeroOptimizer, ZeroThree

Every reduce-scatter is launched at once and none is waited for before the end of backward: all the buckets are alive
together, so the peak is that of whole gradients.
"""


class ShardedOptimizer(ShardedOptimizer):
    def _launch_reduce(self, bucket):
        self._flying = [*getattr(self, "_flying", []), bucket]
        bucket.launch_reduce()

    def _finish_reduce(self):
        for bucket in getattr(self, "_flying", []):
            bucket.finish_reduce()
        self._flying = []


class ZeroOptimizer(ZeroOptimizer, ShardedOptimizer):
    pass


class ZeroThree(ZeroThree, ShardedOptimizer):
    pass
