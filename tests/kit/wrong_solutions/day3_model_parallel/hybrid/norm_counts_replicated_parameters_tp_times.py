"""FAILS: HybridTrainer.sort_parameters, HybridTrainer.gradient_norm

Takes everything for cut: norms, which all ranks of tp hold, count tp times.
"""


class HybridTrainer(HybridTrainer):
    def sort_parameters(self):
        cut = {self.stage.get_parameter(name) for name in cuts_of(self.stage)}
        kinds = super().sort_parameters()
        for kind in kinds:
            if not cut.intersection(kind.parameters):
                kind.copies //= self.layout.tp
        return kinds
