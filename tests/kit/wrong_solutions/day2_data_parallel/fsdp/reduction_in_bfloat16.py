"""FAILS: ShardedLayer.start_reduction, shard_module

Reduces in the dtype that gradients happen to have: half the bytes, and 1 + 2^-9 is 1.
"""


class ShardedLayer(ShardedLayer):
    @torch.no_grad()
    def start_reduction(self):
        if all(gradient is None for gradient in self.unsent):
            return
        trained = [index for index, shard in enumerate(self.shards) if shard.requires_grad]
        source = torch.cat([self.gradient_rows(index).to(self.dtype) for index in trained], dim=1)
        unused = {index for index in trained if self.unsent[index] is None}
        self.unsent = [None] * len(self.places)
        output = source.new_empty(source.shape[1])
        work = reduce_scatter_single(output, source.view(-1), group=self.group, async_op=True)
        self.reducing = Reduction(work, source, output, trained, unused)

    def finish_reduction(self):
        if self.reducing:
            self.reducing.work.wait()
            self.reducing.output = self.reducing.output.float()
        super().finish_reduction()
