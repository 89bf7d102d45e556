"""FAILS: end_bytes, memory_per_gpu, minimum_gpus, choose_parallelism

The loss works in float32: with a vocabulary of 128,256 the logits are the largest tensor there is, and twice as large.
"""


def end_bytes(config, micro_batch, tensor_parallel=1):
    mask = config.hidden if isinstance(config, GPTConfig) else 0
    return share(micro_batch * config.sequence * (4 * config.hidden + 2 * config.vocab + mask), tensor_parallel)
