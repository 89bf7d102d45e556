"""FAILS: expected_traffic, expected_speedup, recommend

Counts payloads: in a ring a rank sends (N-1)/N of them, for its own part has not to go anywhere.
"""


def expected_traffic(strategy, model_bytes, ranks):
    stage = zero_stage(strategy, ranks)
    if strategy == "single GPU" or ranks == 1:
        return 0
    gradients, parameters = {0: (2, 0), 1: (1, 1), 2: (1, 1), 3: (1, 2)}[stage]
    return gradients * model_bytes.gradients + parameters * model_bytes.parameters
