"""FAILS: shard_module

Only the first output of a layer is watched. If the loss does not use it, backward meets a layer that is not there.
"""


class ShardedLayer(ShardedLayer):
    def post_forward(self, module, args, output):
        super().post_forward(module, args, tree_leaves(output)[:1])
