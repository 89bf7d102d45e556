"""FAILS: LARS

As in torch's SGD the velocity is free of the learning rate. Equal while the rate is constant, wrong once it falls: old
steps are scaled by the new rate.
"""


class LARS(LARS):
    def update(self, parameter, state, group):
        velocity = state.setdefault("velocity", torch.zeros_like(parameter))
        decay = group["weight_decay"]
        fraction = trust_ratio(parameter.norm(), parameter.grad.norm() + decay * parameter.norm())
        change = parameter.grad + decay * parameter
        velocity.mul_(group["momentum"]).add_(group["trust_coefficient"] * fraction * change)
        parameter.sub_(group["lr"] * velocity)
