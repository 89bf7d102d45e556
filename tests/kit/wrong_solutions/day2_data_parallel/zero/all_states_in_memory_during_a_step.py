"""FAILS: ShardedOptimizer.step

Updates all buckets at once, also where the states are on NVMe: all of them are in memory together.
"""


@torch.no_grad()
def _step(self, closure=None):
    loss = None if closure is None else torch.enable_grad()(closure)()
    self._reduce()
    for own, inner in zip(self.param_groups, self.inner.param_groups, strict=True):
        inner.update(hyperparameters(own))
    self._hand_out_gradients(self.buckets)
    self.inner.step()
    self._take_back_values(self.buckets)
    self._publish()
    self.zero_grad()
    self._consolidated = None
    return loss


ShardedOptimizer.step = _step
