"""FAILS: ShardedOptimizer.step

The inner optimiser keeps the learning rate it was made with: a scheduler changes param_groups, and nothing happens.
"""

_right_hyperparameters = hyperparameters


class ShardedOptimizer(ShardedOptimizer):
    def step(self, closure=None):
        for own, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
            own.update(_right_hyperparameters(inner))
        return super().step(closure)


class ZeroOptimizer(ZeroOptimizer, ShardedOptimizer):
    pass


class ZeroThree(ZeroThree, ShardedOptimizer):
    pass
