"""FAILS: ShardedLayer.finish_reduction

A rank that has not used a parameter, and whose rows of the sum are zeros, takes it that nobody has used it.
"""


class ShardedLayer(ShardedLayer):
    @torch.no_grad()
    def finish_reduction(self):
        if self.reducing is None:
            return
        reduction, self.reducing = self.reducing, None
        reduction.work.wait()
        free_memory(reduction.source)
        average = reduction.output.div_(self.ranks).to(self.home)
        pieces = average.split([self.chunks[index] for index in reduction.trained])
        for index, piece in zip(reduction.trained, pieces, strict=True):
            if index in reduction.unused and not piece.any():
                continue
            shard = self.shards[index]
            local = shard.to_local()
            gradient = piece[: local.numel()].view(local.shape)
            if shard.grad is None:
                shard.grad = self.as_dtensor(gradient, like=shard)
            else:
                shard.grad.to_local().add_(gradient)
