"""FAILS: clip_grad_norm

Squares of all gradients are summed over the ranks: those that every rank has count N times.
"""


@torch.no_grad()
def clip_grad_norm(params, max_norm):
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive: got {max_norm}")
    gradients = [p.grad for p in params if p.grad is not None]
    mine = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    square = get_total_norm(mine).square()
    dist.all_reduce(square)
    norm = square.sqrt()
    for gradient in mine:
        gradient *= (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return norm
