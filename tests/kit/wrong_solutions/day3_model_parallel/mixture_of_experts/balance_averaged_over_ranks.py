"""FAILS: load_balancing_loss, ExpertParallelMoE, average_gradients, expert_layout

Each rank multiplies its own fractions and means, and the products are averaged: another number on another number of ranks.
"""


def load_balancing_loss(probabilities, assignment, group=None):
    tokens, experts = probabilities.shape
    fractions = torch.bincount(assignment.flatten(), minlength=experts) / max(assignment.numel(), 1)
    own = experts * (fractions * probabilities.sum(0) / max(tokens, 1)).sum()
    return sum_over_ranks(own, group) / position(group)[1]
