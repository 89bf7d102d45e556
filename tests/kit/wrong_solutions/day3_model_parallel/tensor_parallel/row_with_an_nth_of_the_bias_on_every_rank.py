"""FAILS: RowParallelLinear

The output is right. The gradient of the bias is an N-th of what it should be.
"""


class RowParallelLinear(RowParallelLinear):
    def forward(self, x):
        own = scatter_to_ranks(x, self.group) if self.scatter_input else x
        bias = None if self.bias is None else self.bias / position(self.group)[1]
        return reduce_from_ranks(F.linear(own, self.weight, bias), self.group)
