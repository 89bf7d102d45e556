"""FAILS: hardware_flops, hfu

Equation 8 of the paper: selective recomputation charged with forward and backward of attention.
"""

_right_hardware_flops = hardware_flops


def hardware_flops(config, tokens, recompute):
    extra = 8 * config.layers * config.hidden * config.sequence * tokens if recompute == "selective" else 0
    return _right_hardware_flops(config, tokens, recompute) + extra
