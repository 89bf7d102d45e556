"""FAILS: HybridTrainer.gradient_norm

Each rank's own norm: every rank clips by another factor, and the copies of the model drift apart.
"""


class HybridTrainer(HybridTrainer):
    def gradient_norm(self):
        gradients = [each.grad for kind in self.kinds for each in kind.parameters if each.grad is not None]
        return nn.utils.get_total_norm(gradients).double()
