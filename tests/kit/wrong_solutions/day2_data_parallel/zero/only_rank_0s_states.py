"""FAILS: ShardedOptimizer.consolidate_state_dict, ShardedOptimizer.load_state_dict, StateFile.keep

Rank 0 saves what rank 0 has, an N-th of the states, and zeros for the rest. It loads without a word.
"""


class ShardedOptimizer(ShardedOptimizer):
    def consolidate_state_dict(self, to=0):
        state = {}
        for piece in self._pieces():
            for name, value in self._state_of(piece).items():
                whole = value
                if value.dim():
                    whole = torch.zeros(self._shapes[piece.parameter])
                    whole.view(-1)[piece.start : piece.stop] = value
                state.setdefault(self._numbers[piece.parameter], {})[name] = whole
        mine = dist.get_rank(self.group) == to
        self._consolidated = {"state": state, "param_groups": self._numbered_groups()} if mine else None


class ZeroOptimizer(ZeroOptimizer, ShardedOptimizer):
    pass


class ZeroThree(ZeroThree, ShardedOptimizer):
    pass
