"""FAILS: ZeroThree

Every all-gather is waited for where it is launched, also that of the layer to come: prefetching costs its memory and
hides nothing.
"""


class Bucket(Bucket):
    def launch_gather(self):
        all_gather_single(self.full, self.shard, group=self.group)


class ZeroOptimizer(ZeroOptimizer):
    def _publish(self):
        for bucket in self.buckets:
            all_gather_single(bucket.full, bucket.shard, group=self.group, async_op=True).wait()
