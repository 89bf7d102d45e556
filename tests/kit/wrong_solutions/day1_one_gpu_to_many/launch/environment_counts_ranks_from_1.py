"""FAILS: Environment.from_env

Rank 8 of 8 is let in, and the others wait for a rank 0.
"""


class Environment(Environment):
    @classmethod
    def from_env(cls, env=os.environ):
        launcher = find_launcher(env)
        if launcher is None:
            return cls("python", 0, 1, 0, 1, "127.0.0.1", 0)
        names = (launcher.rank, launcher.world_size, launcher.local_rank)
        rank, world_size, local_rank = (whole_number(env, launcher, name) for name in names)
        here_name, here = ranks_here(env, launcher)
        if rank < 0 or rank > world_size:
            raise ValueError(f"{launcher.rank}={rank} contradicts {launcher.world_size}={world_size}")
        if local_rank < 0 or local_rank > here:
            raise ValueError(f"{launcher.local_rank}={local_rank} contradicts {here_name}={here}")
        address, port = meeting_point(env, launcher)
        attempt = int(env.get("TORCHELASTIC_RESTART_COUNT", 0))
        agent = env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        return cls(launcher.name, rank, world_size, local_rank, here, address, port, attempt, agent)
