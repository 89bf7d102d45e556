"""FAILS: ShardedLayer.reshard, ShardedLayer.post_forward, ShardedLayer.post_backward, shard_module, no_sync

New full parameters each time, and the old ones are let go: autograd holds them, so they stay until backward is over.
"""


class ShardedLayer(ShardedLayer):
    def reshard(self):
        if self.is_whole:
            self.register(self.shards)
            self.is_whole = False
            fresh = torch.empty_like(self.whole)
            self.rows = [part.view(self.ranks, -1) for part in fresh.split([self.ranks * c for c in self.chunks])]
            self.full = [
                nn.Parameter(rows.view(-1)[: full.numel()].view(full.shape).data, requires_grad=False)
                for rows, full in zip(self.rows, self.full, strict=True)
            ]
            self.whole = fresh
            free_memory(fresh)
