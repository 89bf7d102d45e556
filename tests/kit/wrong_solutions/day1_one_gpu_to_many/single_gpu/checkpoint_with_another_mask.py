"""FAILS: checkpoint, surroundings

The second run draws its own dropout mask: gradients of a network that was never evaluated.
"""


def surroundings(args):
    cast = {kind: (torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)) for kind in ("cpu",)}
    return lambda: torch.autocast("cpu", dtype=cast["cpu"][0], enabled=cast["cpu"][1])
