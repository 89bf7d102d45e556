"""FAILS: ShardedLayer.finish_reduction

A parameter that no rank has used gets a gradient of zeros: weight decay and momentum move it, one process would not.
"""


class ShardedLayer(ShardedLayer):
    def finish_reduction(self):
        if self.reducing:
            self.reducing.unused.clear()
        super().finish_reduction()
