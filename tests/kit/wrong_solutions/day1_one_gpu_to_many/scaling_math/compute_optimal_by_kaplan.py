"""FAILS: compute_optimal

Kaplan et al. 2020 put the budget into parameters, with exponent 0.73: right at one budget, far too large models above.
"""


def compute_optimal(flops):
    if not flops > 0:
        raise ValueError(f"bad budget: {flops}")
    params = 4e8 * (flops / 1.92e19) ** 0.73
    return round(params), round(flops / (6 * params))
