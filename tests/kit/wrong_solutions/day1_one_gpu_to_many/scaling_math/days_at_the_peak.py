"""FAILS: training_days

The data sheet's FLOP/s, as if every one of them arrived: less than half of the days.
"""

_right_training_days = training_days


def training_days(config, tokens, gpus, gpu, mfu):
    return _right_training_days(config, tokens, gpus, gpu, mfu) * mfu
