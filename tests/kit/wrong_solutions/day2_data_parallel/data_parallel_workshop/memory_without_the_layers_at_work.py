"""FAILS: expected_memory, fewest_ranks, recommend

Counts shards and forgets that a layer is whole while it computes: ZeRO-3 on 1,000 ranks would need next to nothing.
"""


def expected_memory(strategy, model_bytes, ranks):
    stage = zero_stage(strategy, ranks)
    held = model_bytes.activations
    held += share(model_bytes.parameters, ranks if stage >= 3 else 1)
    held += share(model_bytes.gradients, ranks if stage >= 2 else 1)
    return held + share(model_bytes.optimizer, ranks if stage >= 1 else 1)
