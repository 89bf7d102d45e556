"""FAILS: ColumnParallelLinear, ParallelAttention, shard_transformer

Copies of a weight on several ranks look like data parallelism. But they hold parts of one gradient, for other queries.
"""


class ColumnParallelLinear(ColumnParallelLinear):
    def forward(self, x):
        def average(gradient):
            return all_reduce(gradient, self.replica_group) / self.replicas

        if self.replicas == 1:
            return super().forward(x)
        own = [None if part is None else Mirrored.apply(part, unchanged, average) for part in (self.weight, self.bias)]
        return F.linear(copy_to_ranks(x, self.group) if self.copy_input else x, *own)
