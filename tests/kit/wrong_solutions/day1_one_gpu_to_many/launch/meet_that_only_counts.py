"""FAILS: meet

"2 of 4 came" sends you through the logs of 4 machines; and a wait in vain is passed on as it comes from torch.
"""


def meet(environment, timeout):
    opens = environment.rank == 0 and not environment.agent_has_store
    where = f"{environment.master_address}:{environment.master_port}"
    try:
        store = dist.TCPStore(
            environment.master_address,
            environment.master_port,
            is_master=opens,
            timeout=timedelta(seconds=timeout),
            wait_for_workers=False,
        )
    except dist.DistNetworkError as error:
        if opens:
            raise ConnectionError(f"no store at {where}") from error
        raise TimeoutError(f"1 of {environment.world_size} ranks came to {where}") from error
    store = dist.PrefixStore(f"attempt-{environment.attempt}", store)
    came, ends = store.add("came", 1), time.monotonic() + timeout
    while came < environment.world_size:
        if time.monotonic() > ends:
            raise TimeoutError(f"{came} of {environment.world_size} ranks came to {where}")
        time.sleep(0.01)
        came = store.add("came", 0)
    return store
