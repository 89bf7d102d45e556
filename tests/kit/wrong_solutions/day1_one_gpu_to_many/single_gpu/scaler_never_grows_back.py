"""FAILS: LossScaler.step, LossScaler.load_state_dict

Backs off and stays there: after a bad patch early in training the small gradients are lost for good.
"""


class LossScaler(LossScaler):
    def step(self, optimizer):
        finite = self.unscale(optimizer) if self._finite is None else self._finite
        self._finite = None
        self.good_steps = self.good_steps + 1 if finite else 0
        if finite:
            optimizer.step()
        else:
            self.value *= self.backoff
        return finite
