"""FAILS: ShardedOptimizer.clip_grad_norm

Adds up over all ranks there are, also over those of other groups, which train something else.
"""


@torch.no_grad()
def _clip(self, max_norm):
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive: got {max_norm}")
    self._reduce()
    gradients = [bucket.gradient for bucket in self.buckets if bucket.gradient is not None]
    total = torch.zeros((), device=self.buckets[0].shard.device)
    for gradient in gradients:
        wide = torch.promote_types(gradient.dtype, torch.float32)
        total += torch.linalg.vector_norm(gradient, dtype=wide).square()
    dist.all_reduce(total)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factor)
    return norm


ShardedOptimizer.clip_grad_norm = _clip
