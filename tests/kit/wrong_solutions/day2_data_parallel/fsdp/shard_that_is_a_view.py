"""FAILS: ShardedLayer.shard, ShardedLayer.post_forward, shard_module

The rows are a view: the whole original stays in memory behind every shard, and nothing is saved.
"""


class ShardedLayer(ShardedLayer):
    def shard(self, parameter):
        full = parameter.detach()
        rows = full[local_rows(len(full), self.rank, self.ranks)]
        return nn.Parameter(self.as_dtensor(rows, like=full), requires_grad=parameter.requires_grad)
