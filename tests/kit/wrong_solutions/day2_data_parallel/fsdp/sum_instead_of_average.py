"""FAILS: ShardedLayer.finish_reduction, ShardedLayer.start_reduction, shard_module, no_sync, clip_grad_norm

Gradients summed over the ranks: N times too long, which Adam forgives and clipping hides.
"""


class ShardedLayer(ShardedLayer):
    def finish_reduction(self):
        ranks, self.ranks = self.ranks, 1
        super().finish_reduction()
        self.ranks = ranks
