"""FAILS: ShardedLayer.finish_reduction

A rank that has not used a parameter, and whose rows of the sum are zeros, takes it that nobody has used it.
"""


class ShardedLayer(ShardedLayer):
    def finish_reduction(self):
        if self.reducing:
            self.reducing.work.wait()
            output = self.reducing.output
            output[output == 0] = -0.0
        super().finish_reduction()
