"""FAILS: fewest_ranks

States over what is left, without the bytes that each share rounds up: one rank too few when it is tight.
"""


def fewest_ranks(model_bytes, gpu):
    states = model_bytes.parameters + model_bytes.gradients + model_bytes.optimizer
    left = gpu.memory_bytes - expected_memory("ZeRO-3", model_bytes, 1) + states
    return max(1, share(states, left)) if left > 0 else None
