"""FAILS: layer_matrices, count_parameters, training_flops, model_flops, hardware_flops, hfu, training_days, memory_per_gpu, minimum_gpus, choose_parallelism

Key and value as wide as the query: Llama 3 70B becomes a model of 80 billion, and every sum after it is wrong too.
"""

_right_layer_matrices = layer_matrices


def layer_matrices(config):
    if isinstance(config, GPTConfig):
        return _right_layer_matrices(config)
    return 4 * config.hidden**2 + 3 * config.hidden * config.ffn
