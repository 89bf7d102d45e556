"""FAILS: make_groups

The library's own. It makes the same groups, but with the default timeout, and nothing was built.
"""


def make_groups(layout, timeout=60.0):
    from torch.distributed.device_mesh import init_device_mesh

    sizes, world = tuple(layout.values()), dist.get_world_size()
    if not sizes or min(sizes) < 1 or math.prod(sizes) != world:
        raise ValueError(f"{dict(layout)} does not fit {world} ranks")
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=tuple(layout))
    return {name: mesh.get_group(name) for name in layout}
