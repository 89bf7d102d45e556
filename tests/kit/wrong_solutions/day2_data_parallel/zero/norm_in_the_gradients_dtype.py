"""FAILS: ShardedOptimizer.clip_grad_norm

Adds the squares up in the dtype of the gradients: bfloat16 has 8 bits.
"""


@torch.no_grad()
def _clip(self, max_norm):
    if not max_norm > 0:
        raise ValueError(f"max_norm must be positive: got {max_norm}")
    self._reduce()
    gradients = [bucket.gradient for bucket in self.buckets if bucket.gradient is not None]
    total = sum(gradient.square().sum() for gradient in gradients)
    dist.all_reduce(total, group=self.group)
    norm = total.sqrt()
    factor = (max_norm / (norm + 1e-6)).clamp(max=1)
    for gradient in gradients:
        gradient.mul_(factor)
    return norm


ShardedOptimizer.clip_grad_norm = _clip
