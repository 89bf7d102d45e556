from concurrent.futures import ThreadPoolExecutor

real = ring_all_reduce


def ring_all_reduce(tensor, group=None, async_op=False):
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(real, tensor, group, async_op).result()
