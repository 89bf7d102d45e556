"""FAILS: ShardedSampler.load_state_dict

``set_epoch`` always goes back to the start. The usual loop calls it right after loading: the items before the
interruption come a second time.
"""


class ShardedSampler(ShardedSampler):
    def set_epoch(self, epoch):
        self.epoch, self._offset, self._resume_at = epoch, 0, 0
