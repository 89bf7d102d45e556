"""FAILS: LARS

||w|| / ||g||: without weight decay in the denominator layers with small gradients take steps that are too long.
"""


class LARS(LARS):
    def update(self, parameter, state, group):
        velocity = state.setdefault("velocity", torch.zeros_like(parameter))
        fraction = trust_ratio(parameter.norm(), parameter.grad.norm())
        change = parameter.grad + group["weight_decay"] * parameter
        velocity.mul_(group["momentum"]).add_(group["lr"] * group["trust_coefficient"] * fraction * change)
        parameter.sub_(velocity)
