"""FAILS: ShardedSampler, ShardedSampler.load_state_dict

What torch's DistributedSampler does: the first items a second time, until the ranks have the same number. An evaluation
counts them twice.
"""


class ShardedSampler(ShardedSampler):
    def __iter__(self):
        own = list(super().__iter__())
        missing = math.ceil(self.length / self.world_size) - len(own)
        yield from own + ([] if self.drop_last else own[:1] * missing or [0] * missing)

    def __len__(self):
        return super().__len__() if self.drop_last else math.ceil(self.length / self.world_size)
