"""FAILS: ColumnParallelLinear, ParallelAttention, shard_transformer

Every replica of a key head keeps the gradient of its own queries: the copies drift apart, and no error says so.
"""


class ColumnParallelLinear(ColumnParallelLinear):
    def forward(self, x):
        replicas, self.replicas = self.replicas, 1
        try:
            return super().forward(x)
        finally:
            self.replicas = replicas
