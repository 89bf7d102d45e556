"""FAILS: RandomStreams.fork, ParallelDropout

Every layer and every step drops the same elements.
"""


class RandomStreams(RandomStreams):
    @contextmanager
    def fork(self, sharded):
        generator = default_generator()
        outside = generator.get_state()
        generator.set_state(self.states[sharded])
        try:
            yield
        finally:
            generator.set_state(outside)
