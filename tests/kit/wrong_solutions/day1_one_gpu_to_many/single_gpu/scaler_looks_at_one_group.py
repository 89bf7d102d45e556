"""FAILS: LossScaler.unscale

Only the first parameter group is looked at: the others keep their scaled gradients, and their overflows.
"""


class LossScaler(LossScaler):
    def unscale(self, optimizer):
        gradients = [p.grad for p in optimizer.param_groups[0]["params"] if p.grad is not None]
        if self._finite is not None:
            raise ValueError("twice")
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError("float16")
        finite = [gradient.mul_(1 / self.value).isfinite().all() for gradient in gradients]
        self._finite = not finite or bool(torch.stack(finite).all())
        return self._finite
