"""FAILS: ulysses_attention

Takes the tokens of rank 0, then those of rank 1, ... for the sequence: its causal mask hides what should be seen.
"""


def ulysses_attention(query, key, value, causal=True, group=None):
    shards = Shards.of(query, key, value, causal)
    size = position(group)[1]
    if shards.heads % size or (shards.kv_heads % size and size % shards.kv_heads):
        raise ValueError("heads cannot be shared out equally")
    to_heads, to_tokens = partial(tokens_to_heads, group=group), partial(heads_to_tokens, group=group)
    if shards.kv_heads < size:
        key, value = (x.repeat_interleave(size // shards.kv_heads, dim=1) for x in (key, value))
    query, key, value = (Mirrored.apply(x, to_heads, to_tokens) for x in (query, key, value))
    key, value = (x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value))
    output = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    return Mirrored.apply(output, to_tokens, to_heads)
