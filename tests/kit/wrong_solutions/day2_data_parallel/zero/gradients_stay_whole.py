"""FAILS: ZeroOptimizer, ZeroThree

Reduced to shards in time, and the whole gradients are kept until the next backward overwrites them: stage 2 in name,
the memory of stage 1.
"""


class Bucket(Bucket):
    def finish_reduce(self):
        self._kept = self._collected
        self._collected = self._collected.clone()
        super().finish_reduce()
