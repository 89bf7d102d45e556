"""FAILS: FlashAttention.backward

dS = P dP: the gradient of exp, without that of the division by the sum.
"""


class FlashAttention(FlashAttention):
    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx, grad_output):
        query, key, value, _, lse = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        grad_query, grad_key, grad_value = (torch.zeros_like(x, dtype=torch.float32) for x in (query, key, value))
        for rows in tiles(query.shape[1], ctx.block):
            grad_rows, query_rows = grad_output[:, rows].float(), query[:, rows].float()
            for columns in tiles(key.shape[1], ctx.block):
                scores = tile_scores(query, key, rows, columns, ctx.causal)
                if scores is None:
                    break
                weights = scores.sub_(lse[:, rows]).exp_()
                grad_value[:, columns] += weights.mT @ grad_rows
                grad_scores = (grad_rows @ value[:, columns].float().mT) * weights * scale
                grad_query[:, rows] += grad_scores @ key[:, columns].float()
                grad_key[:, columns] += grad_scores.mT @ query_rows
        return grad_query.to(query.dtype), grad_key.to(query.dtype), grad_value.to(query.dtype), None, None
