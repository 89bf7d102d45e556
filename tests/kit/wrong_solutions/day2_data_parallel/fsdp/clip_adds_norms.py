"""FAILS: clip_grad_norm

Norms of the ranks' rows are added; it is their squares that add up.
"""


@torch.no_grad()
def clip_grad_norm(params, max_norm):
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive: got {max_norm}")
    params = list(params)
    sharded = [p.grad.to_local() for p in params if isinstance(p, DTensor) and p.grad is not None]
    plain = [p.grad for p in params if not isinstance(p, DTensor) and p.grad is not None]
    norm = get_total_norm(sharded).to(torch.float32)
    if any(isinstance(p, DTensor) for p in params):
        dist.all_reduce(norm)
    norm = norm + get_total_norm(plain)
    for gradient in [*sharded, *plain]:
        gradient *= (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return norm
