"""FAILS: ShardedSampler, ShardedSampler.load_state_dict

All ranks get the same number of items, whatever ``drop_last`` says: the tail is never seen.
"""


class ShardedSampler(ShardedSampler):
    def __init__(self, length, rank, world_size, shuffle=True, seed=0, drop_last=False):
        super().__init__(length, rank, world_size, shuffle, seed, drop_last=True)
