"""FAILS: expected_traffic, expected_speedup, recommend

Two journeys for all of them: forgets that ZeRO-3 fetches the parameters once more for backward.
"""


def expected_traffic(strategy, model_bytes, ranks):
    zero_stage(strategy, ranks)
    if strategy == "single GPU":
        return 0
    return (model_bytes.gradients + model_bytes.parameters) * (ranks - 1) // ranks
