"""FAILS: ShardedOptimizer.clip_grad_norm

Each rank clips its shard by its shard's norm: every rank scales by another factor, and the direction of the step is lost.
"""


class ShardedOptimizer(ShardedOptimizer):
    @torch.no_grad()
    def clip_grad_norm(self, max_norm):
        if not max_norm > 0:
            raise ValueError(f"max_norm must be positive: got {max_norm}")
        self._reduce()
        gradients = [bucket.gradient for bucket in self.buckets]
        norm = torch.stack([gradient.norm() for gradient in gradients]).norm()
        for gradient in gradients:
            gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1))
        return norm


class ZeroOptimizer(ZeroOptimizer, ShardedOptimizer):
    pass


class ZeroThree(ZeroThree, ShardedOptimizer):
    pass
