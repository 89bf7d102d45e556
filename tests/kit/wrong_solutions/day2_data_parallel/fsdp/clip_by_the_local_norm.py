"""FAILS: clip_grad_norm

The norm of this rank's rows: every rank scales by another factor, and the gradient points somewhere else.
"""


@torch.no_grad()
def clip_grad_norm(params, max_norm):
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive: got {max_norm}")
    gradients = [p.grad for p in params if p.grad is not None]
    mine = [gradient.to_local() if isinstance(gradient, DTensor) else gradient for gradient in gradients]
    norm = get_total_norm(mine)
    for gradient in mine:
        gradient *= (max_norm / (norm + 1e-6)).clamp(max=1.0)
    return norm
