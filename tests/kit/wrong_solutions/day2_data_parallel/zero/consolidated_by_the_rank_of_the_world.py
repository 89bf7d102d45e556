"""FAILS: ShardedOptimizer.consolidate_state_dict

``to`` is taken for a rank of the world, which it is only where the group is the world.
"""


def _consolidate(self, to=0):
    ranks = dist.get_world_size(self.group)
    if not 0 <= to < ranks:
        raise ValueError(f"to must be a rank of the group, 0 ... {ranks - 1}: got {to}")
    found = defaultdict(lambda: defaultdict(list))
    for bucket in self.buckets:
        own = [(self._numbers[piece.parameter], self._state_of(piece)) for piece in bucket.pieces]
        everyone = [[] for _ in range(ranks)] if dist.get_rank() == to else None
        dist.gather_object(own, everyone, group=self.group, dst=to)
        for number, state in (each for theirs in everyone or [] for each in theirs):
            for name, value in state.items():
                found[number][name].append(value)
    shapes = list(self._shapes.values())
    whole = {n: {name: _join(values, shapes[n]) for name, values in found[n].items()} for n in sorted(found)}
    self._consolidated = {"state": whole, "param_groups": self._numbered_groups()} if dist.get_rank() == to else None


ShardedOptimizer.consolidate_state_dict = _consolidate
