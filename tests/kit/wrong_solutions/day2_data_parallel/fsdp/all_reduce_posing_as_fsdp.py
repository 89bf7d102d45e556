"""FAILS: ShardedLayer.start_reduction, ShardedLayer.post_backward, shard_module, no_sync

DDP's all-reduce of whole gradients, of which each rank keeps its rows: right values, twice the traffic.
"""


class ShardedLayer(ShardedLayer):
    @torch.no_grad()
    def start_reduction(self):
        if all(gradient is None for gradient in self.unsent):
            return
        trained = [index for index, shard in enumerate(self.shards) if shard.requires_grad]
        source = torch.cat([self.gradient_rows(index).float() for index in trained], dim=1)
        unused = {index for index in trained if self.unsent[index] is None}
        self.unsent = [None] * len(self.places)
        work = dist.all_reduce(source, group=self.group, async_op=True)
        work.wait()
        self.reducing = Reduction(work, source, source[self.rank].clone(), trained, unused)
