"""FAILS: RandomStreams.fork, ParallelDropout

The seed plus one on every rank but the first: ranks 1, 2, ... share a mask. It passes on two ranks.
"""


class RandomStreams(RandomStreams):
    def __init__(self, seed, group=None):
        rank, _ = position(group)
        seeds = {False: seed, True: seed + 1 + min(rank, 1)}
        self.states = {sharded: torch.Generator(device()).manual_seed(of).get_state() for sharded, of in seeds.items()}
