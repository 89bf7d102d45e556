"""FAILS: LossScaler.scale

Gradients are divided by a scale that they were never multiplied with.
"""


class LossScaler(LossScaler):
    def scale(self, loss):
        return loss
