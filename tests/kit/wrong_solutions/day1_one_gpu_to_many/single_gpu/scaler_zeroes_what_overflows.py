"""FAILS: LossScaler.step

Instead of leaving the step out, inf and NaN become 0: momentum and weight decay move the weights all the same.
"""


class LossScaler(LossScaler):
    def step(self, optimizer):
        finite = self.unscale(optimizer) if self._finite is None else self._finite
        self._finite = None
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.grad.nan_to_num_(0, 0, 0)
        optimizer.step()
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value *= self.backoff
        elif self.good_steps == self.interval:
            self.value = min(self.value * self.growth, torch.finfo(torch.float32).max)
            self.good_steps = 0
        return finite
