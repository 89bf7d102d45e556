"""FAILS: deepspeed_config

No word about clipping: DeepSpeed 0.19 then clips every gradient to norm 1.0, and the loss curves part after one step.
"""

_right_deepspeed_config = deepspeed_config


def deepspeed_config(stage, offload, micro_batch, accumulation, precision):
    config = _right_deepspeed_config(stage, offload, micro_batch, accumulation, precision)
    del config["gradient_clipping"]
    return config
