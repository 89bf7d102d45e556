"""FAILS: LAMB

The moments as they are. The trust ratio repairs the length, which hides it; the direction stays wrong, because the two
moments are too small by different factors.
"""


class LAMB(LAMB):
    def update(self, parameter, state, group):
        first = state.setdefault("first", torch.zeros_like(parameter))
        second = state.setdefault("second", torch.zeros_like(parameter))
        beta1, beta2 = group["betas"]
        first.lerp_(parameter.grad, 1 - beta1)
        second.lerp_(parameter.grad.square(), 1 - beta2)
        change = first / (second.sqrt() + group["eps"]) + group["weight_decay"] * parameter
        parameter.sub_(group["lr"] * trust_ratio(parameter.norm(), change.norm()) * change)
