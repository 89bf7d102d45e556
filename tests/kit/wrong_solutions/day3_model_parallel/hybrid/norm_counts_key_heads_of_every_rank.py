"""FAILS: HybridTrainer.sort_parameters, HybridTrainer.gradient_norm

A parameter is cut or it is not: key and value heads that several ranks hold count several times.
"""


class HybridTrainer(HybridTrainer):
    def sort_parameters(self):
        cuts = {self.stage.get_parameter(name): cut for name, cut in cuts_of(self.stage).items()}
        kinds = {}
        for kind in super().sort_parameters():
            for each in kind.parameters:
                copies = kind.copies // (cuts[each].replicas if each in cuts else 1)
                kinds.setdefault((copies, kind.group), Kind([], kind.group, copies)).parameters.append(each)
        return list(kinds.values())
