"""FAILS: HybridTrainer.build_stage, HybridTrainer.step

Forgets to say where a rank's tokens stand: RoPE turns every part as if it were the first.
"""

_transformer_pipeline = transformer_pipeline


def transformer_pipeline(model, schedule, group=None, positions=None):
    return _transformer_pipeline(model, schedule, group)
