"""FAILS: FlashAttention.backward

Gradients are summed in the dtype of the inputs: in bfloat16 a sum stops growing after some hundred equal terms.
"""


class FlashAttention(FlashAttention):
    @staticmethod
    @once_differentiable
    @without_autocast
    def backward(ctx, grad_output):
        query, key, value, output, lse = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        delta = (grad_output.float() * output.float()).sum(-1, keepdim=True)
        grad_query, grad_key, grad_value = (torch.zeros_like(x) for x in (query, key, value))
        for rows in tiles(query.shape[1], ctx.block):
            grad_rows, query_rows = grad_output[:, rows].float(), query[:, rows].float()
            for columns in tiles(key.shape[1], ctx.block):
                scores = tile_scores(query, key, rows, columns, ctx.causal)
                if scores is None:
                    break
                weights = scores.sub_(lse[:, rows]).exp_()
                grad_value[:, columns] += (weights.mT @ grad_rows).to(query.dtype)
                grad_scores = (grad_rows @ value[:, columns].float().mT - delta[:, rows]) * weights * scale
                grad_query[:, rows] += (grad_scores @ key[:, columns].float()).to(query.dtype)
                grad_key[:, columns] += (grad_scores.mT @ query_rows).to(query.dtype)
        return grad_query, grad_key, grad_value, None, None
