"""FAILS: LossScaler.step

step looks at the gradients again, which clipping by value has made finite since.
"""


class LossScaler(LossScaler):
    def step(self, optimizer):
        if self._finite is None:
            self.unscale(optimizer)
        grads = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
        finite = all(bool(g.isfinite().all()) for g in grads)
        self._finite = None
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value *= self.backoff
        else:
            optimizer.step()
            if self.good_steps == self.interval:
                self.value = min(self.value * self.growth, torch.finfo(torch.float32).max)
                self.good_steps = 0
        return finite
