"""FAILS: memory_per_gpu, choose_parallelism

ZeRO over all GPUs, after tensor and pipeline parallelism have split the model already: shards counted twice.
"""

_right_memory_per_gpu = memory_per_gpu


def memory_per_gpu(config, recipe, gpus, zero_stage=0, tensor_parallel=1, pipeline_parallel=1):
    right = _right_memory_per_gpu(config, recipe, gpus, zero_stage, tensor_parallel, pipeline_parallel)
    own = share(count_parameters(config), tensor_parallel * pipeline_parallel)
    return replace(model_state_bytes(own, recipe, zero_stage, gpus), activations=right.activations)
