"""FAILS: ParallelAttention, shard_transformer

Right, with three all-reduces in backward where one does: the obvious plan for DTensor does the same.
"""


class ParallelAttention(ParallelAttention):
    def __init__(self, dense, group=None):
        super().__init__(dense, group)
        for layer in (self.query, self.key, self.value):
            layer.copy_input = True

    def forward(self, x, positions):
        return super(ParallelAttention.__base__, self).forward(x, positions)
