"""FAILS: ColumnParallelLinear, ParallelAttention, ParallelMLP, shard_transformer

Sharded storage, dense computation: the weights travel instead of the activations.
"""


class ColumnParallelLinear(ColumnParallelLinear):
    def forward(self, x):
        if self.replicas > 1:
            return super().forward(x)
        x = copy_to_ranks(x, self.group) if self.copy_input else x
        full = [None if own is None else gather_from_ranks(own, self.group, dim=0) for own in (self.weight, self.bias)]
        y = F.linear(x, *full)
        return y if self.gather_output else own_block(y, -1, self.group)
