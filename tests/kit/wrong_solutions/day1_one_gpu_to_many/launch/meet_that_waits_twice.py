"""FAILS: meet

The whole timeout for the store, and again for the others; and a store that is gone looks like a fault of the network.
"""


def meet(environment, timeout):
    where, ranks = f"{environment.master_address}:{environment.master_port}", environment.world_size
    opens = environment.rank == 0 and not environment.agent_has_store
    limit = timedelta(seconds=timeout)
    try:
        address = (environment.master_address, environment.master_port)
        store = dist.TCPStore(*address, is_master=opens, timeout=limit, wait_for_workers=False)
    except dist.DistNetworkError as error:
        if opens:
            raise ConnectionError(f"no store at {where}") from error
        raise TimeoutError(f"1 of {ranks} ranks came to {where}") from error
    store = dist.PrefixStore(f"attempt-{environment.attempt}", store)
    keys = [f"here/{rank}" for rank in range(ranks)]
    store.set(keys[environment.rank], "")
    try:
        store.wait(keys, limit)
    except dist.DistStoreError:
        missing = [rank for rank, key in enumerate(keys) if not store.check([key])]
        store.set(f"told/{environment.rank}", "")
        if opens:
            with suppress(dist.DistStoreError):
                store.wait([f"told/{rank}" for rank in range(ranks) if rank not in missing], timedelta(seconds=5))
        came, names = ranks - len(missing), ", ".join(map(str, missing))
        raise TimeoutError(f"{came} of {ranks} ranks came to {where}; missing: {names}") from None
    return store
