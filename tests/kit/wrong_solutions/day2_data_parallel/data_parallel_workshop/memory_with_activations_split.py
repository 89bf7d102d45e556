"""FAILS: expected_memory, fewest_ranks, recommend

Divides activations by the ranks too: they belong to a rank's own rows, and nobody else has a part of them.
"""


def expected_memory(strategy, model_bytes, ranks):
    stage = zero_stage(strategy, ranks)
    parameters, gradients = model_bytes.parameters, model_bytes.gradients
    held = share(model_bytes.activations, ranks)
    held += share(parameters, ranks) + 2 * model_bytes.layer if stage >= 3 else parameters
    held += share(gradients, ranks) + 2 * model_bytes.layer * gradients // parameters if stage >= 2 else gradients
    return held + (share(model_bytes.optimizer, ranks) if stage >= 1 else model_bytes.optimizer)
