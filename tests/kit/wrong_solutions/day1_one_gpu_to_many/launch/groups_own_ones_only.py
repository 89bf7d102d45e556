"""FAILS: make_groups

Each rank makes only the groups it is in. The ranks pair up groups by counting them, so they hang or mix them up.
"""


def make_groups(layout, timeout=60.0):
    sizes, world = list(layout.values()), dist.get_world_size()
    if not sizes or min(sizes) < 1 or math.prod(sizes) != world:
        raise ValueError(f"{dict(layout)} does not fit {world} ranks")
    grid = torch.arange(world).reshape(sizes)
    mine = {}
    for axis, name in enumerate(layout):
        for members in grid.movedim(axis, -1).reshape(-1, sizes[axis]).tolist():
            if dist.get_rank() in members:
                mine[name] = dist.new_group(members, timeout=timedelta(seconds=timeout), use_local_synchronization=True)
    return mine
