"""FAILS: ColumnParallelLinear, ParallelAttention, ParallelMLP

Shows parameters of the right size, keeps the dense layer beside them, and does all the work on every rank.
"""


class ColumnParallelLinear(ColumnParallelLinear):
    def __init__(self, dense, group=None, **options):
        super().__init__(dense, group, **options)
        self.others = [None if full is None else full.detach().clone() for full in (dense.weight, dense.bias)]

    def forward(self, x):
        own = super().forward(x)
        with torch.no_grad():
            F.linear(x, *self.others)
        return own
