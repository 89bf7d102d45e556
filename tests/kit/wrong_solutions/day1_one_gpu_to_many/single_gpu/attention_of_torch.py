"""FAILS: FlashAttention.forward, FlashAttention.backward

scaled_dot_product_attention in a wrapper.
"""


class FlashAttention(FlashAttention):
    @staticmethod
    def apply(query, key, value, causal, block):
        from torch.nn import functional

        if not causal or query.shape[1] == key.shape[1]:
            return functional.scaled_dot_product_attention(query, key, value, is_causal=causal)
        hidden = torch.ones(query.shape[1], key.shape[1], dtype=torch.bool).tril(key.shape[1] - query.shape[1])
        return functional.scaled_dot_product_attention(query, key, value, attn_mask=hidden)
