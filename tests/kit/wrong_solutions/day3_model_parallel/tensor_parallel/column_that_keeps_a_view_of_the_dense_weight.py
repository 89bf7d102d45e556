"""FAILS: ColumnParallelLinear, ParallelAttention, ParallelMLP, shard_transformer

The parameter has the right shape, and the whole dense weight stays in memory behind it.
"""


class ColumnParallelLinear(ColumnParallelLinear):
    def __init__(self, dense, group=None, **options):
        super().__init__(dense, group, **options)
        for name in ("weight", "bias"):
            full = getattr(dense, name)
            if full is not None:
                own = own_block(full.detach(), 0, group, self.replicas)
                setattr(self, name, nn.Parameter(own, requires_grad=full.requires_grad))
