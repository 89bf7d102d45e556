"""FAILS: training_flops

Two FLOPs per parameter and token: the forward pass.
"""


def training_flops(config, tokens):
    return 2 * count_parameters(config) * tokens
