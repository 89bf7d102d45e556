"""FAILS: share_capacity, ExpertParallelMoE, average_gradients, expert_layout

Each rank has an N-th of every expert's room: which claims are dropped depends on how the tokens lie on the ranks.
"""


def share_capacity(claims, capacity):
    ranks = len(claims)
    own = claims.cumsum(1) - claims
    if capacity is None:
        return claims, torch.zeros_like(claims)
    room = capacity // ranks
    return (room - own).clamp(min=0).minimum(claims), torch.full_like(claims, capacity - room)
