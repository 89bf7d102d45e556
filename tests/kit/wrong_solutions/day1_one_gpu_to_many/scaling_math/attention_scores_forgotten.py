"""FAILS: model_flops, hardware_flops, mfu, hfu, training_days

6 P, taken for the whole of it. Right within 3 % for GPT-3 at 2,048 tokens, and wrong by half for long texts.
"""


def model_flops(config, tokens):
    return 6 * count_parameters(config) * tokens
