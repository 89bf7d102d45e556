"""FAILS: make_groups

The rank's own group first, then the others: another order on every rank.
"""


def make_groups(layout, timeout=60.0):
    sizes, world = list(layout.values()), dist.get_world_size()
    if not sizes or min(sizes) < 1 or math.prod(sizes) != world:
        raise ValueError(f"{dict(layout)} does not fit {world} ranks")
    grid = torch.arange(world).reshape(sizes)
    mine = {}
    for axis, name in enumerate(layout):
        lines = grid.movedim(axis, -1).reshape(-1, sizes[axis]).tolist()
        for members in sorted(lines, key=lambda members: dist.get_rank() not in members):
            group = dist.new_group(members, timeout=timedelta(seconds=2))
            if dist.get_rank() in members:
                mine[name] = group
    return mine
