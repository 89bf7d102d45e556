"""FAILS: ShardedLayer.unshard

Full parameters are frozen or not as the shards were at first: what is unfrozen later never trains.
"""


class ShardedLayer(ShardedLayer):
    def unshard(self):
        before = [full.requires_grad for full in self.full]
        again = hasattr(self, "was_whole")
        super().unshard()
        self.was_whole = True
        if again:
            for full, requires_grad in zip(self.full, before, strict=True):
                full.requires_grad_(requires_grad)
