"""FAILS: ShardedLayer.start_gather

Gathers the shards of the beginning: those that load_state_dict(assign=True) has registered since are ignored.
"""


class ShardedLayer(ShardedLayer):
    def start_gather(self):
        if not self.is_whole:
            self.register(self.shards)
        super().start_gather()
