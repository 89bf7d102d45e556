"""FAILS: FlashAttention.forward, FlashAttention.backward

Sums exp(score) as it is: right until a score passes 88, where exp leaves float32.
"""


class FlashAttention(FlashAttention):
    @staticmethod
    @without_autocast
    def forward(ctx, query, key, value, causal, block):
        output = query.new_empty(*query.shape[:2], value.shape[2])
        lse = query.new_empty(*query.shape[:2], 1, dtype=torch.float32)
        for rows in tiles(query.shape[1], block):
            total = torch.zeros_like(lse[:, rows])
            mixed = torch.zeros_like(output[:, rows], dtype=torch.float32)
            for columns in tiles(key.shape[1], block):
                scores = tile_scores(query, key, rows, columns, causal)
                if scores is None:
                    break
                weights = scores.exp_()
                total += weights.sum(-1, keepdim=True)
                mixed += weights @ value[:, columns].float()
            total.clamp_(min=1e-30)
            output[:, rows], lse[:, rows] = mixed / total, total.log()
        ctx.save_for_backward(query, key, value, output, lse)
        ctx.causal, ctx.block = causal, block
        return output
