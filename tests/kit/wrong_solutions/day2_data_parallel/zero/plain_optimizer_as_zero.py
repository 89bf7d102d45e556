"""FAILS: ZeroOptimizer, ZeroThree, Bucket.collect, ShardedOptimizer.clip_grad_norm, ShardedOptimizer.step, ShardedOptimizer.consolidate_state_dict, ShardedOptimizer.load_state_dict, StateFile.keep

An ordinary optimiser after an all-reduce of the gradients: right weights, right losses, and every rank holds everything.
"""


class _Plain:
    def _start(self, module_or_params, optimizer_class, group, defaults):
        is_module = isinstance(module_or_params, nn.Module)
        self.module = module_or_params if is_module else None
        everything = module_or_params.parameters() if is_module else module_or_params
        self.inner = optimizer_class(everything, **defaults)
        self.param_groups, self.group = self.inner.param_groups, group
        for parameter in self._parameters():
            dist.broadcast(parameter.data, group_src=0, group=group)

    def _parameters(self):
        return [parameter for group in self.param_groups for parameter in group["params"]]

    def _average(self):
        for parameter in self._parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad, group=self.group)
                parameter.grad /= dist.get_world_size(self.group)

    def clip_grad_norm(self, max_norm):
        self._average()
        return nn.utils.clip_grad_norm_(self._parameters(), max_norm)

    def step(self, closure=None):
        self._average()
        self.inner.step(closure)
        self.inner.zero_grad()

    def zero_grad(self, set_to_none=True):
        self.inner.zero_grad()

    def consolidate_state_dict(self, to=0):
        pass

    def state_dict(self):
        return self.inner.state_dict()

    def load_state_dict(self, state_dict):
        self.inner.load_state_dict(state_dict)

    def full_state_dict(self, to=0):
        return self.module.state_dict()

    def load_full_state_dict(self, state_dict):
        self.module.load_state_dict(state_dict)

    def close(self):
        pass


class ZeroOptimizer(_Plain):
    def __init__(self, params, optimizer_class, stage, group=None, offload=None, bucket_mb=25.0, **defaults):
        self._start(params, optimizer_class, group, defaults)


class ZeroThree(_Plain):
    def __init__(self, module, optimizer_class, group=None, offload=None, units=None, prefetch=1, **defaults):
        self._start(module, optimizer_class, group, defaults)
