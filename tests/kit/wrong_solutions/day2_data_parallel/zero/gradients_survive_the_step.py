"""FAILS: ShardedOptimizer.step, ZeroOptimizer, ZeroThree, Bucket.collect, ShardedOptimizer.clip_grad_norm, ShardedOptimizer.consolidate_state_dict, ShardedOptimizer.load_state_dict, StateFile.keep

The shards of the gradient stay until somebody calls zero_grad on the right object: the model's own zero_grad cannot
reach them, and the next backward adds to what was used already.
"""


class ShardedOptimizer(ShardedOptimizer):
    def step(self, closure=None):
        kept = self.zero_grad
        self.zero_grad = lambda set_to_none=True: None
        try:
            return super().step(closure)
        finally:
            self.zero_grad = kept


class ZeroOptimizer(ZeroOptimizer, ShardedOptimizer):
    pass


class ZeroThree(ZeroThree, ShardedOptimizer):
    pass
