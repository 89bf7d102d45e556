"""FAILS: ParallelMLP

The inner features are brought together, only to be cut again for the row parallel layer.
"""


class ParallelMLP(ParallelMLP):
    def forward(self, x):
        x = copy_to_ranks(x, self.group)
        inner = gather_from_ranks(F.silu(self.gate(x)) * self.up(x), self.group)
        return self.down(scatter_to_ranks(inner, self.group))
