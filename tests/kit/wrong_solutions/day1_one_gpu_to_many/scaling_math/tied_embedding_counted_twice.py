"""FAILS: count_parameters

Embedding and head are added up whether they are one matrix or two: 263 million parameters too many in Llama 3.2 1B.
"""

_right_count_parameters = count_parameters


def count_parameters(config):
    again = config.vocab * config.hidden if isinstance(config, GPTConfig) or config.tied else 0
    return _right_count_parameters(config) + again
