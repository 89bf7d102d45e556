"""FAILS: FlashAttention.forward, FlashAttention.backward

The formula as it stands: equal values and gradients, a matrix of scores, and NaN for queries that see nothing.
"""


class FlashAttention(FlashAttention):
    @staticmethod
    def apply(query, key, value, causal, block):
        queries, keys = query.shape[1], key.shape[1]
        scores = tile_scores(query, key, slice(0, queries), slice(0, keys), causal)
        return (scores.softmax(-1).nan_to_num() @ value.float()).to(query.dtype)
