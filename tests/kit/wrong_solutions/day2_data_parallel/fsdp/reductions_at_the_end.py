"""FAILS: ShardedLayer.post_backward, shard_module

All reduce-scatters leave when backward is over: nothing to hide them behind, and all gradients whole until then.
"""


class ShardedLayer(ShardedLayer):
    def post_backward(self):
        self.collect_gradients()
        self.reshard()
