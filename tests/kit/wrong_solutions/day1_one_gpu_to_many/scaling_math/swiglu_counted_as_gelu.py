"""FAILS: saved_per_token, activation_bytes, memory_per_gpu, minimum_gpus, choose_parallelism

Input and output of the activation function, as with GELU: SwiGLU keeps the other branch and the product as well.
"""

_right_saved_per_token = saved_per_token


def saved_per_token(config):
    whole, split, scores = _right_saved_per_token(config)
    return whole, split - (0 if isinstance(config, GPTConfig) else 4 * config.ffn), scores
