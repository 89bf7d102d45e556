"""FAILS: ShardedLayer.shard

Without shape, a DTensor believes that every rank has as many rows as this one: with 5 rows on 4 ranks they disagree.
"""


class ShardedLayer(ShardedLayer):
    def shard(self, parameter):
        rows = parameter.detach()[local_rows(len(parameter), self.rank, self.ranks)].clone()
        shard = DTensor.from_local(rows, self.mesh, [Shard(0)], run_check=False)
        return nn.Parameter(shard, requires_grad=parameter.requires_grad)
