"""FAILS: ZeroOptimizer, ZeroThree, ShardedOptimizer.consolidate_state_dict, ShardedOptimizer.load_state_dict

What is frozen travels and has states too: nothing moves it, and everybody pays for it. (Its gradient counts as zero.)
"""

_right_shard = ShardedOptimizer._shard


class ShardedOptimizer(ShardedOptimizer):
    def _shard(self, buckets, group, offload):
        for bucket in (bucket for each in buckets for bucket in each):
            if not bucket.trained:
                bucket.trained = True
                bucket.used.update(bucket.parameters)
                bucket.drop_gradient = lambda bucket=bucket: setattr(bucket, "gradient", None)
        super()._shard(buckets, group, offload)

    def _hook_gradients(self):
        for bucket in self.buckets:
            for parameter in bucket.parameters:
                if parameter.requires_grad:
                    parameter.register_post_accumulate_grad_hook(partial(self._gradient_ready, bucket))


class ZeroOptimizer(ZeroOptimizer, ShardedOptimizer):
    pass


class ZeroThree(ZeroThree, ShardedOptimizer):
    pass
