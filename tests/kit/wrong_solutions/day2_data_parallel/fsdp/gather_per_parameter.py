"""FAILS: ShardedLayer.start_gather, ShardedLayer.pre_forward, ShardedLayer.pre_backward, shard_module

An all-gather for each parameter: the same bytes, as many latencies as the layer has tensors.
"""


class Several:
    def __init__(self, works):
        self.works = works

    def wait(self):
        for work in self.works:
            work.wait()


class ShardedLayer(ShardedLayer):
    @torch.no_grad()
    def start_gather(self):
        if self.is_whole or self.gathering or not self.places:
            return
        self.shards = [module._parameters[name] for (module, name), *_ in self.places]
        parts, works, messages = [], [], []
        for shard, chunk in zip(self.shards, self.chunks, strict=True):
            part = torch.empty(self.ranks * chunk, dtype=self.dtype)
            piece = padded(shard.to_local(), chunk).to(self.dtype, copy=True)
            works.append(all_gather_single(part, piece, self.group, async_op=True))
            parts.append(part.view(self.ranks, chunk))
            messages += [part, piece]
        Several(works).wait()
        self.gathering = Several([]), torch.cat(parts, dim=1).view(-1)
        for message in messages:  # a thread of the backend may hold it for a moment
            message.untyped_storage().resize_(0)
