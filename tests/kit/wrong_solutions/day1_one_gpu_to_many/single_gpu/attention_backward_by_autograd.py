"""FAILS: FlashAttention.backward

Forward once more under autograd, then backward through it: every tile is kept, and computed twice.
"""


class FlashAttention(FlashAttention):
    @staticmethod
    def backward(ctx, grad_output):
        query, key, value, *_ = (tensor.detach().requires_grad_() for tensor in ctx.saved_tensors)
        with torch.enable_grad():
            pieces = []
            for rows in tiles(query.shape[1], ctx.block):
                tile = [
                    tile_scores(query, key, rows, columns, ctx.causal) for columns in tiles(key.shape[1], ctx.block)
                ]
                scores = [scores for scores in tile if scores is not None]
                if not scores:
                    pieces.append(torch.zeros_like(ctx.saved_tensors[3][:, rows], dtype=torch.float32))
                    continue
                scores = torch.cat(scores, -1)
                pieces.append(scores.softmax(-1).nan_to_num() @ value[:, : scores.shape[-1]].float())
            output = torch.cat(pieces, 1).to(query.dtype)
        return *torch.autograd.grad(output, (query, key, value), grad_output, allow_unused=True), None, None
