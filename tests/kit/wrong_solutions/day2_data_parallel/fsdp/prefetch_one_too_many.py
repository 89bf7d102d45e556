"""FAILS: ShardedLayer.pre_forward, shard_module

Launches the next all-gathers before its own layer has arrived and been copied out: one layer more than was allowed.
"""


class ShardedLayer(ShardedLayer):
    def pre_forward(self, module, args, kwargs):
        self.prefetch += 1
        try:
            return super().pre_forward(module, args, kwargs)
        finally:
            self.prefetch -= 1
