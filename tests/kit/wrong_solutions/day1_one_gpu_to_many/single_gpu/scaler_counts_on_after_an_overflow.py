"""FAILS: LossScaler.step, LossScaler.load_state_dict

Counts good steps in all, not in a row: the scale grows right after an overflow, and overflows again.
"""


class LossScaler(LossScaler):
    def step(self, optimizer):
        finite = self.unscale(optimizer) if self._finite is None else self._finite
        self._finite = None
        if not finite:
            self.value *= self.backoff
            return False
        optimizer.step()
        self.good_steps += 1
        if self.good_steps % self.interval == 0:
            self.value = min(self.value * self.growth, torch.finfo(torch.float32).max)
        return True
