"""FAILS: expected_speedup, recommend

Adds messages to the computation, as if nothing could be hidden.
"""


def expected_speedup(strategy, model_bytes, gpu, ranks, bandwidth):
    if not bandwidth > 0:
        raise ValueError(f"bandwidth is in bytes/s and must be positive: got {bandwidth}")
    messages = expected_traffic(strategy, model_bytes, ranks) / bandwidth
    working = 1 if strategy == "single GPU" else ranks
    return working * gpu.step_seconds / (gpu.step_seconds + messages)
