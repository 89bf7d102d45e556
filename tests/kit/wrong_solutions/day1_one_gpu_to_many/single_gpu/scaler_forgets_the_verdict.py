"""FAILS: LossScaler.step

What unscale has found is forgotten by the time of step, which takes every step that somebody else has unscaled.
"""


class LossScaler(LossScaler):
    def step(self, optimizer):
        finite = self.unscale(optimizer) if self._finite is None else True
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
