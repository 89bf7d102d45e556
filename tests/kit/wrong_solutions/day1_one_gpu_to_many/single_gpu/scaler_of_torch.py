"""FAILS: LossScaler.step

The built-in GradScaler in a wrapper: right numbers, nothing built.
"""


class LossScaler(LossScaler):
    def step(self, optimizer):
        finite = self.unscale(optimizer) if self._finite is None else self._finite
        torch_scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        torch_scaler.scale(torch.ones(()))
        torch_scaler.step(optimizer)
        self._finite = None
        self.good_steps = self.good_steps + 1 if finite else 0
        if not finite:
            self.value *= self.backoff
        elif self.good_steps == self.interval:
            self.value = min(self.value * self.growth, torch.finfo(torch.float32).max)
            self.good_steps = 0
        return finite
