"""FAILS: ShardedOptimizer.load_state_dict

What was loaded stays in memory until the next step, although it belongs into the file.
"""


def _load(self, state_dict):
    groups = state_dict["param_groups"]
    own, theirs = ([len(group["params"]) for group in each] for each in (self.param_groups, groups))
    if own != theirs:
        raise ValueError(f"the state has parameter groups of {theirs} parameters, this optimiser of {own}")
    whole = [state_dict["state"].get(self._numbers[piece.parameter], {}) for piece in self._pieces()]
    state = {
        number: {name: _cut(value, piece, self._shapes[piece.parameter]) for name, value in whole[number].items()}
        for number, piece in enumerate(self._pieces())
    }
    inner = self.inner.state_dict()["param_groups"]
    groups = [{**hyperparameters(group), "params": each["params"]} for group, each in zip(groups, inner, strict=True)]
    self.inner.load_state_dict({"state": state, "param_groups": groups})
    for group, each in zip(self.param_groups, groups, strict=True):
        group.update(hyperparameters(each))
    self._consolidated = None


ShardedOptimizer.load_state_dict = _load
