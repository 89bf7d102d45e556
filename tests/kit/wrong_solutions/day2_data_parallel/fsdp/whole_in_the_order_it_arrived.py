"""FAILS: ShardedLayer.unshard, ShardedLayer.reshard, shard_module, no_sync

What arrives is sorted by rank. Copied over as it is, parameters of a layer are mixed up; on one rank nobody notices.
"""


class ShardedLayer(ShardedLayer):
    @torch.no_grad()
    def unshard(self):
        if self.is_whole or not self.places:
            return
        self.start_gather()
        work, gathered = self.gathering
        work.wait()
        give_memory(self.whole)
        self.whole.data.copy_(gathered)
        free_memory(gathered)
        self.gathering = None
        for full, shard in zip(self.full, self.shards, strict=True):
            full.requires_grad_(shard.requires_grad)
        self.register(self.full)
        self.is_whole = True
