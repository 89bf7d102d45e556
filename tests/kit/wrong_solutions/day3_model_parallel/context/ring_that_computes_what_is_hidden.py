"""FAILS: RingAttention.forward

All scores against all keys, and a mask: right, on every rank equally much, and twice as much as is needed.
"""


class RingAttention(RingAttention):
    @staticmethod
    def forward(ctx, query, key, value, causal, group):
        rank, size = position(group)
        wide = torch.promote_types(query.dtype, torch.float32)
        length, whole = query.shape[2], slice(0, query.shape[2])
        at = [zigzag_positions(length * size, of, size) for of in range(size)] if causal else None
        output, lse = torch.zeros_like(query, dtype=wide), query.new_full(query.shape[:3], -torch.inf, dtype=wide)
        for source, (keys, values) in circulate(torch.stack((key, value)), group):
            scores = tile_scores(query, keys.to(wide), whole, False)
            if causal:
                hidden = at[rank].unsqueeze(1) < at[source]
                scores.unflatten(2, (-1, length)).masked_fill_(hidden, -torch.inf)
            local = scores.logsumexp(-1, keepdim=True)
            mixed = (scores - local.nan_to_num(neginf=0)).exp() @ values.to(wide)
            part = mixed.reshape(query.shape), local.reshape(lse.shape)
            output, lse = merge_attention(output, lse, *part)
        ctx.save_for_backward(query, key, value, output.to(query.dtype), lse)
        ctx.causal, ctx.group = causal, group
        return output.to(query.dtype)
