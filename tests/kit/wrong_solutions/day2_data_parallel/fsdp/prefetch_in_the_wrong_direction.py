"""FAILS: ShardedLayer.pre_backward, shard_module

Backward gathers ahead what forward would need next: it has just been freed, and is gathered again for nothing.
"""


class ShardedLayer(ShardedLayer):
    def pre_backward(self, calls, position, gradient):
        self.schedule.enter_backward()
        self.unshard()
        for layer in calls[position + 1 : position + 1 + self.prefetch]:
            layer.start_gather()
