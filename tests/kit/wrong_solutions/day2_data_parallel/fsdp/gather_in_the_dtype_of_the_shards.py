"""FAILS: ShardedLayer.start_gather, shard_module

Computes in bfloat16 and sends float32: twice the bytes that are needed.
"""


class ShardedLayer(ShardedLayer):
    @torch.no_grad()
    def start_gather(self):
        if self.is_whole or self.gathering or not self.places:
            return
        gathered = torch.empty(self.ranks * sum(self.chunks), dtype=self.shards[0].dtype)
        piece = gathered.chunk(self.ranks)[self.rank]
        pieces = [padded(shard.to_local(), chunk) for shard, chunk in zip(self.shards, self.chunks, strict=True)]
        torch.cat(pieces, out=piece)
        work = all_gather_single(gathered, piece, self.group, async_op=True)
        work.wait()
        self.gathering = work, gathered.to(self.dtype)
