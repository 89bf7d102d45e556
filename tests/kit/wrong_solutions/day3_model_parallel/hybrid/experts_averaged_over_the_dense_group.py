"""FAILS: HybridTrainer.sort_parameters, HybridTrainer.settle_gradients, HybridTrainer.step

Averages every gradient over the data group: different experts are mixed, and made equal.
"""


class HybridTrainer(HybridTrainer):
    def sort_parameters(self):
        kinds = super().sort_parameters()
        for kind in kinds:
            if kind.group is self.groups["expert_data"] and self.layout.ep > 1:
                kind.group, kind.copies = self.groups["data"], kind.copies * self.layout.ep
        return kinds
