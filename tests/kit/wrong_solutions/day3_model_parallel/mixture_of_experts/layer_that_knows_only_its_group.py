"""FAILS: ExpertParallelMoE, average_gradients

Capacity and losses of the ranks that exchange tokens, where the batch has more of them: another layout, other drops.
"""


class ExpertParallelMoE(ExpertParallelMoE):
    def __init__(self, config, group=None, batch_group=None):
        super().__init__(config, group, group)
