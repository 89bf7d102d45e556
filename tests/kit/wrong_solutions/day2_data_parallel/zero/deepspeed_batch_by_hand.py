"""FAILS: deepspeed_config

train_batch_size worked out without the number of ranks: DeepSpeed refuses it on every other world size.
"""

_right_deepspeed_config = deepspeed_config


def deepspeed_config(stage, offload, micro_batch, accumulation, precision):
    config = _right_deepspeed_config(stage, offload, micro_batch, accumulation, precision)
    return {**config, "train_batch_size": micro_batch * accumulation}
