"""FAILS: ShardedOptimizer.consolidate_state_dict

state_dict() brings the states together by itself: comfortable, until somebody writes ``if rank == 0: save(...)`` around
it and the job hangs.
"""


class ShardedOptimizer(ShardedOptimizer):
    def state_dict(self):
        self.consolidate_state_dict()
        return self._consolidated or {}


class ZeroOptimizer(ZeroOptimizer, ShardedOptimizer):
    pass


class ZeroThree(ZeroThree, ShardedOptimizer):
    pass
