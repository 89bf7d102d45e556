"""FAILS: connect

Without try and finally, the group survives a block that raises, and so does its port.
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
    yield dist.group.WORLD
    dist.destroy_process_group()
