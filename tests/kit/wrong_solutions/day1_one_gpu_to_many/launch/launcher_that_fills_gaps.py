"""FAILS: find_launcher, Environment.from_env

A missing WORLD_SIZE taken for 1: eight processes that train the same thing eight times.
"""


def find_launcher(env):
    return next((launcher for launcher in LAUNCHERS if any(sign in env for sign in launcher.signs)), None)


class Environment(Environment):
    @classmethod
    def from_env(cls, env=os.environ):
        launcher = find_launcher(env)
        if launcher is None:
            return cls("python", 0, 1, 0, 1, "127.0.0.1", 0)
        world_size = int(env.get(launcher.world_size, 1))
        address, port = meeting_point(env, launcher)
        rank, local_rank = int(env.get(launcher.rank, 0)), int(env.get(launcher.local_rank, 0))
        return cls(launcher.name, rank, world_size, local_rank, world_size, address, port)
