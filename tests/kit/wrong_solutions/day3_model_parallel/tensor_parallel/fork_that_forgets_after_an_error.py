"""FAILS: RandomStreams.fork

An exception, caught outside, leaves the global stream where the block was.
"""


class RandomStreams(RandomStreams):
    @contextmanager
    def fork(self, sharded):
        generator = default_generator()
        outside = generator.get_state()
        generator.set_state(self.states[sharded])
        yield
        self.states[sharded] = generator.get_state()
        generator.set_state(outside)
