"""FAILS: ChunkedCrossEntropy.backward

Ignored targets are left out of the loss and not out of its gradient.
"""


class ChunkedCrossEntropy(ChunkedCrossEntropy):
    @staticmethod
    @without_autocast
    def forward(ctx, hidden, weight, targets, chunk, ignore_index, train):
        valid = targets != ignore_index
        count = valid.sum().clamp(min=1)
        labels = targets.where(valid, 0).unsqueeze(1)
        loss = torch.zeros(())
        grad_hidden, grad_weight = torch.empty_like(hidden), torch.zeros_like(weight, dtype=torch.float32)
        for rows in tiles(len(hidden), chunk):
            logits = (hidden[rows] @ weight.mT).float()
            normaliser = logits.logsumexp(1, keepdim=True)
            loss += ((normaliser - logits.gather(1, labels[rows])) * valid[rows].unsqueeze(1)).sum() / count
            if train:
                grad = logits.sub_(normaliser).exp_()
                grad = (grad.scatter_add_(1, labels[rows], -torch.ones_like(normaliser)) / count).to(hidden.dtype)
                grad_hidden[rows] = grad @ weight
                grad_weight += grad.mT @ hidden[rows]
        if train:
            ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return loss
