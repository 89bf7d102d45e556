"""FAILS: ShardedLayer.post_forward, ShardedLayer.pre_backward, shard_module

Gather at the start and never free: a layer stays whole from its forward to the end of the step. Every rank holds the
whole model, and all values are right.
"""


class ShardedLayer(ShardedLayer):
    def post_forward(self, module, args, output):
        keep, self.reshard = self.reshard, lambda: None
        try:
            return super().post_forward(module, args, output)
        finally:
            self.reshard = keep
