"""FAILS: HybridTrainer.sort_parameters, HybridTrainer.gradient_norm

Forgets that first and last stage hold the embedding both: its gradient counts twice.
"""


class HybridTrainer(HybridTrainer):
    def sort_parameters(self):
        kinds = super().sort_parameters()
        for kind in kinds:
            if self.layout.pp > 1 and any(each is tied for each in kind.parameters for tied in self.stage.tied):
                kind.copies //= 2
        return kinds
