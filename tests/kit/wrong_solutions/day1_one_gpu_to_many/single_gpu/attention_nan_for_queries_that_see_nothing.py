"""FAILS: FlashAttention.forward, FlashAttention.backward

The maximum begins with -inf: -inf - (-inf) is NaN for a query that sees no key.
"""


class FlashAttention(FlashAttention):
    @staticmethod
    @without_autocast
    def forward(ctx, query, key, value, causal, block):
        output = query.new_empty(*query.shape[:2], value.shape[2])
        lse = query.new_empty(*query.shape[:2], 1, dtype=torch.float32)
        for rows in tiles(query.shape[1], block):
            largest = torch.full_like(lse[:, rows], -math.inf)
            total = torch.zeros_like(largest)
            mixed = torch.zeros_like(output[:, rows], dtype=torch.float32)
            for columns in tiles(key.shape[1], block):
                scores = tile_scores(query, key, rows, columns, causal)
                if scores is None:
                    break
                larger = torch.maximum(largest, scores.amax(-1, keepdim=True))
                weights, shrink = (scores - larger).exp(), (largest - larger).exp()
                total = total * shrink + weights.sum(-1, keepdim=True)
                mixed = mixed * shrink + weights @ value[:, columns].float()
                largest = larger
            output[:, rows], lse[:, rows] = mixed / total, largest + total.log()
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.causal, ctx.block = causal, block
        return output
