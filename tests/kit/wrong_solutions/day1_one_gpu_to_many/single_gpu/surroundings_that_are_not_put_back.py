"""FAILS: surroundings, checkpoint

The generator stays where the second run left it: every layer drawn from later repeats earlier numbers.
"""


def surroundings(args):
    states = [(generator, generator.get_state()) for generator in generators(args)]
    dtype, enabled = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")

    @contextlib.contextmanager
    def again():
        for generator, state in states:
            generator.set_state(state)
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            yield

    return again
