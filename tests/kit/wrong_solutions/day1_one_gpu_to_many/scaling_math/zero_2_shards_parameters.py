"""FAILS: model_state_bytes, memory_per_gpu, choose_parallelism

One stage too early: ZeRO-2 seems to save what only ZeRO-3 does, and the plan runs out of memory on the first forward.
"""

_right_model_state_bytes = model_state_bytes


def model_state_bytes(params, recipe, zero_stage=0, data_parallel=1):
    return _right_model_state_bytes(params, recipe, 3 if zero_stage == 2 else zero_stage, data_parallel)
