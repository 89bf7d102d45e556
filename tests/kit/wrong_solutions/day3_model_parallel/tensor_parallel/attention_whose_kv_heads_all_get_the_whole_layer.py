"""FAILS: ParallelAttention

Key and value projections whole on every rank, each cutting out its heads after: no traffic, N times the memory.
"""


class WholeColumns(ColumnParallelLinear):
    def cut(self, dense):
        self.register_parameter("weight", nn.Parameter(dense.weight.detach().clone()))
        self.register_parameter("bias", None)

    def forward(self, x):
        weight = copy_to_ranks(self.weight, self.group)
        return F.linear(x, own_block(weight, 0, self.group, self.replicas))


class ParallelAttention(ParallelAttention):
    def __init__(self, dense, group=None):
        super().__init__(dense, group)
        self.key = WholeColumns(dense.key, group, copy_input=False, replicas=self.key.replicas)
        self.value = WholeColumns(dense.value, group, copy_input=False, replicas=self.value.replicas)
