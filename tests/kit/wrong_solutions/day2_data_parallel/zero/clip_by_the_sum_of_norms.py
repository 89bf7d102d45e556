"""FAILS: ShardedOptimizer.clip_grad_norm

Norms are added up in place of their squares: 3 and 4 make 7, and gradients are clipped too hard on more than one rank.
"""


class ShardedOptimizer(ShardedOptimizer):
    @torch.no_grad()
    def clip_grad_norm(self, max_norm):
        if not max_norm > 0:
            raise ValueError(f"max_norm must be positive: got {max_norm}")
        self._reduce()
        gradients = [bucket.gradient for bucket in self.buckets]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        dist.all_reduce(norm, group=self.group)
        for gradient in gradients:
            gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1))
        return norm


class ZeroOptimizer(ZeroOptimizer, ShardedOptimizer):
    pass


class ZeroThree(ZeroThree, ShardedOptimizer):
    pass
