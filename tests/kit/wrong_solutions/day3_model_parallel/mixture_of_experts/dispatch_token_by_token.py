"""FAILS: dispatch, ExpertParallelMoE

All choices of the first token before those of the second: a second choice takes the room of a later token's first.
"""


def dispatch(tokens, assignment, capacity, experts, ahead=None):
    k = assignment.shape[1]
    claims = assignment.flatten()
    order = claims.argsort(stable=True)
    counts = torch.bincount(claims, minlength=experts)
    if capacity is not None:
        of = claims[order]
        place = torch.arange(len(of)) - (counts.cumsum(0) - counts)[of]
        if ahead is not None:
            place += ahead[order % k, of]
        order, counts = order[place < capacity], torch.bincount(of[place < capacity], minlength=experts)
    return Dispatched(tokens.index_select(0, order // k), order, counts)
