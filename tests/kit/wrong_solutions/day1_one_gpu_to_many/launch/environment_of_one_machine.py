"""FAILS: Environment.from_env

The local world taken for the whole one: right on a laptop, and on two nodes everybody takes a wrong GPU.
"""

_read = Environment.from_env


class Environment(Environment):
    @classmethod
    def from_env(cls, env=os.environ):
        seen = _read(env)
        return cls(
            seen.launcher,
            seen.rank,
            seen.world_size,
            seen.rank,
            seen.world_size,
            seen.master_address,
            seen.master_port,
            seen.attempt,
            seen.agent_has_store,
        )
