"""FAILS: ShardedOptimizer.load_state_dict

The states come back, the learning rate of the checkpoint does not.
"""

_load = ShardedOptimizer.load_state_dict


def _load_states(self, state_dict):
    own = [hyperparameters(group) for group in self.param_groups]
    _load(self, state_dict)
    for each, inner, group in zip(self.param_groups, self.inner.param_groups, own, strict=True):
        each.update(group)
        inner.update(group)


ShardedOptimizer.load_state_dict = _load_states
