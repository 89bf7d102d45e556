"""FAILS: budget_bytes, minimum_gpus, choose_parallelism

10**9 for 2**30: 7 % of the memory is gone before training starts.
"""


def budget_bytes(gpu):
    return int(USABLE_SHARE * gpu.memory_gib * 1e9)
