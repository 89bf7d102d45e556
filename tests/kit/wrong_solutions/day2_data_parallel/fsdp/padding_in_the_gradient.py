"""FAILS: ShardedLayer.finish_reduction, shard_module

The chunk that arrives is taken for the gradient, padding and all.
"""


class ShardedLayer(ShardedLayer):
    @torch.no_grad()
    def finish_reduction(self):
        if self.reducing is None:
            return
        reduction, self.reducing = self.reducing, None
        reduction.work.wait()
        average = reduction.output.div_(self.ranks)
        for index, piece in zip(
            reduction.trained, average.split([self.chunks[i] for i in reduction.trained]), strict=True
        ):
            if index in reduction.unused and bool(((piece == 0) & piece.signbit()).all()):
                continue
            shard = self.shards[index]
            gradient = self.as_dtensor(piece.view(-1, *shard.shape[1:]), like=shard)
            shard.grad = gradient if shard.grad is None else shard.grad + gradient
