"""FAILS: surroundings

Autocast is switched on again, in its own favourite dtype and not in the one that was set.
"""


def surroundings(args):
    states = [(generator, generator.get_state()) for generator in generators(args)]
    kinds = [generator.device.type for generator, _ in states]
    casts = [(kind, torch.is_autocast_enabled(kind)) for kind in kinds]

    @contextlib.contextmanager
    def again():
        before = [generator.get_state() for generator, _ in states]
        with contextlib.ExitStack() as stack:
            for kind, enabled in casts:
                stack.enter_context(torch.autocast(kind, enabled=enabled))
            try:
                for generator, state in states:
                    generator.set_state(state)
                yield
            finally:
                for (generator, _), state in zip(states, before, strict=True):
                    generator.set_state(state)

    return again
