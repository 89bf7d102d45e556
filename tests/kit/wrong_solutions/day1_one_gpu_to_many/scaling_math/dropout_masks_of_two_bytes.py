"""FAILS: saved_per_token, activation_bytes

Everything in 16 bits, masks too: 36 instead of 34, and 6 a s / h instead of 5.
"""

_right_saved_per_token = saved_per_token


def saved_per_token(config):
    if not isinstance(config, GPTConfig):
        return _right_saved_per_token(config)
    return 12 * config.hidden, 24 * config.hidden, 6 * config.heads * config.sequence
