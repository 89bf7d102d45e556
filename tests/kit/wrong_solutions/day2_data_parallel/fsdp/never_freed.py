"""FAILS: ShardedLayer.reshard, ShardedLayer.post_forward, shard_module

The shards are registered again and the whole parameters stay where they are: right in every value, and nothing saved.
"""


class ShardedLayer(ShardedLayer):
    def reshard(self):
        if self.is_whole:
            self.register(self.shards)
            self.is_whole = False
