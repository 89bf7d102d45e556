"""FAILS: connect

The deadline is for the rendezvous only: a collective that a rank never makes waits for 30 minutes.
"""


@contextmanager
def connect(environment, timeout=60.0):
    if timeout <= 0:
        raise ValueError(f"timeout must be a positive number of seconds: got {timeout}")
    os.environ.update(environment.variables())
    store = meet(environment, timeout)
    dist.init_process_group("gloo", store=store, rank=environment.rank, world_size=environment.world_size)
    try:
        yield dist.group.WORLD
    finally:
        dist.destroy_process_group()
