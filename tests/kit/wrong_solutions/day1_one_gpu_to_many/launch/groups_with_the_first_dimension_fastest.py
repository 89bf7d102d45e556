"""FAILS: make_groups

Tensor parallelism across machines and data parallelism inside: right sums, and the slow link does the talking.
"""


def make_groups(layout, timeout=60.0):
    sizes, world = list(layout.values()), dist.get_world_size()
    if not sizes or min(sizes) < 1 or math.prod(sizes) != world:
        raise ValueError(f"{dict(layout)} does not fit {world} ranks")
    grid = torch.arange(world).reshape(sizes[::-1]).permute(*reversed(range(len(sizes))))
    mine = {}
    for axis, name in enumerate(layout):
        for members in grid.movedim(axis, -1).reshape(-1, sizes[axis]).tolist():
            group = dist.new_group(members, timeout=timedelta(seconds=timeout))
            if dist.get_rank() in members:
                mine[name] = group
    return mine
