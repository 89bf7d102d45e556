"""FAILS: shard_module

Layers that backward has left stay whole until it is over: at the end the whole model is there.
"""


class ShardedLayer(ShardedLayer):
    def post_backward(self):
        found = self.collect_gradients()
        if found and self.synchronise:
            self.schedule.reduce(self)


class Schedule(Schedule):
    def backward_done(self):
        super().backward_done()
        for layer in self.layers:
            layer.reshard()
