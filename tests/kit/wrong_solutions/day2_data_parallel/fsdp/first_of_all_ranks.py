"""FAILS: clip_grad_norm, full_state_dict, load_full_state_dict

Rank 0 of all, and the sum over all: wrong as soon as the ranks of the group are not all there are.
"""

_full_state_dict, _load_full_state_dict = full_state_dict, load_full_state_dict


@torch.no_grad()
def clip_grad_norm(params, max_norm):
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive: got {max_norm}")
    params = list(params)
    total = torch.zeros((), device=device())
    for sharded in (False, True):
        kind = [p for p in params if isinstance(p, DTensor) == sharded]
        mine = [p.grad.to_local() if sharded else p.grad for p in kind if p.grad is not None]
        square = get_total_norm(mine).to(total).square()
        if sharded and kind:
            dist.all_reduce(square)
        total += square
    norm = total.sqrt()
    for parameter in params:
        if parameter.grad is not None:
            parameter.grad.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0).item())
    return norm


@torch.no_grad()
def full_state_dict(module):
    require_layers(module)
    state = {}
    for name, value in module.state_dict(keep_vars=True).items():
        full = value.detach().full_tensor() if isinstance(value, DTensor) else value.detach()
        tied = next((kept for kept, other in state.values() if other is value), None)
        state[name] = tied if tied is not None else full.to("cpu", copy=True), value
    return {name: full for name, (full, _) in state.items()} if dist.get_rank() == 0 else {}


@torch.no_grad()
def load_full_state_dict(module, state):
    require_layers(module)
    _load_full_state_dict(module, state if dist.get_rank() == 0 else dict(module.state_dict()))
