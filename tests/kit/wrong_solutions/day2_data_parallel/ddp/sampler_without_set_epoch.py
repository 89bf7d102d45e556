"""FAILS: ShardedSampler.set_epoch

The epoch is stored and never used: every epoch has the same order. Training runs, and learns a little less.
"""


class ShardedSampler(ShardedSampler):
    def __iter__(self):
        order = list(range(self.length))
        if self.shuffle:
            order = torch.randperm(self.length, generator=torch.Generator().manual_seed(self.seed)).tolist()
        self._offset, self._resume_at = self._resume_at, 0
        tail = (self.length - self._offset) % self.world_size if self.drop_last else 0
        for index in order[self._offset + self.rank : self.length - tail : self.world_size]:
            self._offset += self.world_size
            yield index
