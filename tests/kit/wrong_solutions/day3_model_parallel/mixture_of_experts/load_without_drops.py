"""FAILS: ExpertParallelMoE

What was dropped is not counted: the drop rate is 0 whatever happens.
"""


class ExpertParallelMoE(ExpertParallelMoE):
    def forward(self, x):
        y = super().forward(x)
        self.load = Load(self.load.asked, self.load.asked)
        return y
