"""FAILS: LossScaler.unscale, LossScaler.step, LossScaler.load_state_dict

Looks for inf only. inf - inf, an ordinary end of an overflow, is NaN.
"""


class LossScaler(LossScaler):
    def unscale(self, optimizer):
        if self._finite is not None:
            raise ValueError("unscale was called twice before step")
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        if any(gradient.dtype == torch.float16 for gradient in gradients):
            raise ValueError("float16 gradients")
        infinite = [gradient.mul_(1 / self.value).isinf().any() for gradient in gradients]
        self._finite = not infinite or not bool(torch.stack(infinite).any())
        return self._finite
