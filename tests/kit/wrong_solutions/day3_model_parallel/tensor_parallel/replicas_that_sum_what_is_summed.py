"""FAILS: ColumnParallelLinear, ParallelAttention

A hook on the accumulated gradient: with a second backward it sums the first one's sum again.
"""


class ColumnParallelLinear(ColumnParallelLinear):
    def __init__(self, dense, group=None, **options):
        super().__init__(dense, group, **options)
        if self.replicas > 1:
            for parameter in self.parameters():
                parameter.register_post_accumulate_grad_hook(
                    lambda own: dist.all_reduce(own.grad, group=self.replica_group)
                )

    def forward(self, x):
        y = F.linear(copy_to_ranks(x, self.group) if self.copy_input else x, self.weight, self.bias)
        return gather_from_ranks(y, self.group) if self.gather_output else y
