"""FAILS: ShardedLayer.start_reduction, ShardedLayer.finish_reduction

Only what this rank has a gradient for is sent. A rank that has not used some parameter sends fewer bytes, and what
arrives is another parameter's.
"""


class ShardedLayer(ShardedLayer):
    @torch.no_grad()
    def start_reduction(self):
        trained = [index for index, gradient in enumerate(self.unsent) if gradient is not None]
        if not trained:
            return
        source = torch.cat([self.gradient_rows(index).float() for index in trained], dim=1)
        self.unsent = [None] * len(self.places)
        output = source.new_empty(source.shape[1])
        work = reduce_scatter_single(output, source.view(-1), group=self.group, async_op=True)
        self.reducing = Reduction(work, source, output, trained, set())
