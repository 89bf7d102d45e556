"""FAILS: surroundings

Puts the generators back when all goes well, and not after an exception.
"""


def surroundings(args):
    states = [(generator, generator.get_state()) for generator in generators(args)]
    dtype, enabled = torch.get_autocast_dtype("cpu"), torch.is_autocast_enabled("cpu")

    @contextlib.contextmanager
    def again():
        before = [generator.get_state() for generator, _ in states]
        for generator, state in states:
            generator.set_state(state)
        with torch.autocast("cpu", dtype=dtype, enabled=enabled):
            yield
        for (generator, _), state in zip(states, before, strict=True):
            generator.set_state(state)

    return again
