"""FAILS: RowParallelLinear

Added before the sum: the bias counts as often as there are ranks.
"""


class RowParallelLinear(RowParallelLinear):
    def forward(self, x):
        own = scatter_to_ranks(x, self.group) if self.scatter_input else x
        return reduce_from_ranks(F.linear(own, self.weight, self.bias), self.group)
