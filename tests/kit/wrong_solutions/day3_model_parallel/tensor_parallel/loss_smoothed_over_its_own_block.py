"""FAILS: vocab_parallel_cross_entropy

Smoothing spreads over the whole vocabulary, not over a rank's part of it.
"""


class VocabParallelCrossEntropy(VocabParallelCrossEntropy):
    @staticmethod
    def forward(ctx, logits, targets, label_smoothing, ignore_index, group):
        rank, size = position(group)
        rows = logits.shape[-1]
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        largest = logits.amax(-1)
        if size > 1:
            dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        shifted = logits - largest.unsqueeze(-1)
        local = (targets - rank * rows).unsqueeze(-1)
        elsewhere = (local < 0) | (local >= rows)
        local = local.masked_fill(elsewhere, 0)
        sums = [shifted.gather(-1, local).masked_fill(elsewhere, 0).squeeze(-1)]
        if label_smoothing:
            sums.append(shifted.sum(-1))
        probabilities = shifted.exp()
        sums.append(probabilities.sum(-1))
        target, *smooth, total = all_reduce(torch.stack(sums), group)
        losses = total.log() - (1 - label_smoothing) * target
        if label_smoothing:
            losses = losses - label_smoothing / rows * smooth[0]
        valid = targets != ignore_index
        share = valid.to(losses.dtype) / valid.sum().clamp(min=1)
        ctx.save_for_backward(probabilities / total.unsqueeze(-1), local, elsewhere, share)
        ctx.label_smoothing, ctx.vocab = label_smoothing, rows
        return (losses.masked_fill(~valid, 0) * share).sum()
