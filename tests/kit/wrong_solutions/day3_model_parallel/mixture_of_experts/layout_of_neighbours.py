"""FAILS: expert_layout

Neighbours exchange tokens also where they have the same ones: each token meets its expert as often as there are tensor-parallel ranks.
"""

_expert_layout = expert_layout


def expert_layout(ranks, tensor=1, expert=1, split_tokens=False):
    _expert_layout(ranks, tensor, expert, split_tokens)
    return _expert_layout(ranks, 1, expert, True)
