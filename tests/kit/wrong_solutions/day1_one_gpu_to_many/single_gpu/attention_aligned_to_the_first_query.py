"""FAILS: tile_scores, FlashAttention.forward, FlashAttention.backward

Query i sees keys 0 to i, as is_causal=True of torch has it: with a cache of earlier keys the new queries see its start
and not its end.
"""


def tile_scores(query, key, rows, columns, causal):
    if causal and columns.start > rows.stop - 1:
        return None
    scores = (query[:, rows].float() * query.shape[-1] ** -0.5) @ key[:, columns].float().mT
    if causal:
        hidden = torch.arange(columns.start, columns.stop) > torch.arange(rows.start, rows.stop).unsqueeze(1)
        scores.masked_fill_(hidden, -math.inf)
    return scores
