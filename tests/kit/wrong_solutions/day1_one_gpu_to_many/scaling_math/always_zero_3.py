"""FAILS: choose_parallelism

One strategy for every model: it fits more often than the others, and sends half as much again as DDP for nothing.
"""


def choose_parallelism(config, cluster):
    need = memory_per_gpu(config, RECIPES["mixed"], cluster.gpus, 3).total
    return Choice("ZeRO-3", f"ZeRO-3 needs {in_gib(need)} of {in_gib(budget_bytes(cluster.gpu))} per GPU.")
