"""FAILS: ShardedLayer.collect_gradients, no_sync

Micro-batches are added up in the dtype they were computed in: what is 256 times smaller than the sum is lost.
"""


class ShardedLayer(ShardedLayer):
    def collect_gradients(self):
        before, self.synchronise = self.synchronise, True
        try:
            return super().collect_gradients()
        finally:
            self.synchronise = before
