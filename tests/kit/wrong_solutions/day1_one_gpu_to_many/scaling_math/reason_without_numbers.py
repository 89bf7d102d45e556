"""FAILS: choose_parallelism

The right strategy, because.
"""

_right_choose_parallelism = choose_parallelism


def choose_parallelism(config, cluster):
    strategy = _right_choose_parallelism(config, cluster).strategy
    return Choice(strategy, f"{strategy} is the best strategy for this model on this cluster.")
