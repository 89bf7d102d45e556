"""FAILS: connect

The variables stay: the next `Environment.from_env` finds a torchrun that has started nobody, at port 0.
"""


@contextmanager
def connect(environment, timeout=60.0):
    if timeout <= 0:
        raise ValueError(f"timeout must be a positive number of seconds: got {timeout}")
    os.environ.update(environment.variables())
    dist.init_process_group(
        "gloo",
        store=meet(environment, timeout),
        rank=environment.rank,
        world_size=environment.world_size,
        timeout=timedelta(seconds=timeout),
    )
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
