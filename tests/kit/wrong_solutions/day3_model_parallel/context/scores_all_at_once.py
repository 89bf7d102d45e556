"""FAILS: attend_block

Right, and all scores of a block are in memory: the square of the shard's length.
"""


def attend_block(query, key, value, causal):
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = tile_scores(query, key.to(wide), slice(0, query.shape[2]), causal)
    lse = scores.logsumexp(-1)
    output = (scores - lse.unsqueeze(-1)).exp() @ value.to(wide)
    return output.reshape(query.shape), lse.reshape(query.shape[:3])
