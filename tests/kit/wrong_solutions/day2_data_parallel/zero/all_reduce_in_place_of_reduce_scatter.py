"""FAILS: ZeroOptimizer, ZeroThree

Everybody gets the whole sum and cuts out a shard: right values, twice the bytes.
"""


class Bucket(Bucket):
    def launch_reduce(self):
        self._reducing = dist.all_reduce(self._collected, group=self.group, async_op=True)

    def finish_reduce(self):
        rank = dist.get_rank(self.group)
        length = self.shard.numel()
        self._reducing.wait()
        arrived = self._collected[rank * length : (rank + 1) * length].clone()
        self.gradient = arrived if self.gradient is None else self.gradient.add_(arrived)
        self._collected = self._reducing = None
