"""FAILS: fewest_ranks, recommend

Doubles until it fits: any number of ranks will do, not only powers of two.
"""


def fewest_ranks(model_bytes, gpu):
    ranks = 1
    while expected_memory("ZeRO-3", model_bytes, ranks) > gpu.memory_bytes:
        ranks *= 2
        if ranks > model_bytes.optimizer:
            return None
    return ranks
