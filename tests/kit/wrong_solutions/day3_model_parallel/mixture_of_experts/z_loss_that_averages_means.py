"""FAILS: router_z_loss, ExpertParallelMoE

The mean over ranks of each rank's mean: a rank with one token counts as much as one with a thousand.
"""


def router_z_loss(logits, group=None):
    own = logits.logsumexp(-1).square().sum() / max(len(logits), 1)
    return sum_over_ranks(own, group) / position(group)[1]
