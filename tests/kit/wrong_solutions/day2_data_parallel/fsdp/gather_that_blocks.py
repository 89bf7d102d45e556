"""FAILS: ShardedLayer.start_gather, ShardedLayer.reshard, ShardedLayer.pre_forward, shard_module

Launched in time, and waited for on the spot: the layer that could compute meanwhile stands still.
"""


class Arrived:
    def wait(self):
        pass


class ShardedLayer(ShardedLayer):
    @torch.no_grad()
    def start_gather(self):
        if self.is_whole or self.gathering or not self.places:
            return
        self.shards = [module._parameters[name] for (module, name), *_ in self.places]
        gathered = torch.empty(self.ranks * sum(self.chunks), dtype=self.dtype)
        pieces = [padded(shard.to_local(), chunk) for shard, chunk in zip(self.shards, self.chunks, strict=True)]
        all_gather_single(gathered, torch.cat(pieces).to(self.dtype), self.group)
        self.gathering = Arrived(), gathered
