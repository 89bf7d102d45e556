"""FAILS: ShardedOptimizer.load_state_dict, StateFile.keep

Hyperparameters come back, moments do not: training goes on, the loss jumps, and nobody knows why.
"""


class ShardedOptimizer(ShardedOptimizer):
    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.inner.state.clear()


class ZeroOptimizer(ZeroOptimizer, ShardedOptimizer):
    pass


class ZeroThree(ZeroThree, ShardedOptimizer):
    pass
