"""FAILS: scaled_learning_rate

One rule for all: the linear rule of SGD gets the square root.
"""


def scaled_learning_rate(base, batch, base_batch, rule):
    if not (base > 0 and batch > 0 and base_batch > 0) or rule not in ("linear", "sqrt"):
        raise ValueError("bad input")
    return base * math.sqrt(batch / base_batch)
