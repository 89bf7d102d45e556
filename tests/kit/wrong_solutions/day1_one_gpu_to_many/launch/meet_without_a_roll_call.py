"""FAILS: meet

The store alone does not say who is missing: the first sign is a time-out inside gloo.
"""


def meet(environment, timeout):
    opens = environment.rank == 0 and not environment.agent_has_store
    address = (environment.master_address, environment.master_port)
    store = dist.TCPStore(*address, is_master=opens, timeout=timedelta(seconds=timeout), wait_for_workers=False)
    return dist.PrefixStore(f"attempt-{environment.attempt}", store)
