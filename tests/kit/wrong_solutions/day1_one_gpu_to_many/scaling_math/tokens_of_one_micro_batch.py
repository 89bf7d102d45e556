"""FAILS: tokens_per_second, mfu

The loop over micro-batches is inside the seconds and not in the tokens: MFU falls to 1/K with K accumulation steps.
"""


def tokens_per_second(config, step):
    return step.micro_batch * step.data_parallel * config.sequence / step.seconds
