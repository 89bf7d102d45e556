"""FAILS: ShardedLayer.pre_forward

Each layer is gathered when it is needed, whatever prefetch says: every message is waited for.
"""


class ShardedLayer(ShardedLayer):
    def pre_forward(self, module, args, kwargs):
        prefetch, self.prefetch = self.prefetch, 0
        try:
            return super().pre_forward(module, args, kwargs)
        finally:
            self.prefetch = prefetch
