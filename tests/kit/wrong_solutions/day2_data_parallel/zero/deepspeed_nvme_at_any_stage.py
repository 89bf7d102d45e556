"""FAILS: deepspeed_config

Offload to NVMe in stages 1 and 2: DeepSpeed takes the configuration, and keeps the states in memory.
"""

_right_deepspeed_config = deepspeed_config


def deepspeed_config(stage, offload, micro_batch, accumulation, precision):
    if offload and stage in (1, 2):
        config = _right_deepspeed_config(3, offload, micro_batch, accumulation, precision)
        config["zero_optimization"]["stage"] = stage
        return config
    return _right_deepspeed_config(stage, offload, micro_batch, accumulation, precision)
