"""FAILS: HybridTrainer.sort_parameters, HybridTrainer.step

Averages over replicas alone: ranks that share sequences keep the gradient of their own tokens.
"""


class HybridTrainer(HybridTrainer):
    def sort_parameters(self):
        kinds = super().sort_parameters()
        for kind in kinds:
            if kind.group is self.groups["data"]:
                kind.group = self.groups["dp"]
        return kinds
