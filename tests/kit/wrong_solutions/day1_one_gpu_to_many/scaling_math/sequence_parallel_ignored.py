"""FAILS: activation_bytes, memory_per_gpu, choose_parallelism

Norms and dropout are kept whole on every tensor-parallel rank, whatever was asked for: 10 s b h that do not shrink.
"""

_right_activation_bytes = activation_bytes


def activation_bytes(config, micro_batch, recompute, tensor_parallel=1, sequence_parallel=False):
    return _right_activation_bytes(config, micro_batch, recompute, tensor_parallel)
