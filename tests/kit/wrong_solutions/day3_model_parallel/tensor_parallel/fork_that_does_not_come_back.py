"""FAILS: RandomStreams.fork

Whoever draws afterwards draws from the stream: on all ranks the same.
"""


class RandomStreams(RandomStreams):
    @contextmanager
    def fork(self, sharded):
        generator = default_generator()
        generator.set_state(self.states[sharded])
        yield
        self.states[sharded] = generator.get_state()
