"""FAILS: ChunkedCrossEntropy.backward

The gradient of the weight is summed up over the chunks in the dtype of the weight: in bfloat16 it stops growing.
"""


class ChunkedCrossEntropy(ChunkedCrossEntropy):
    @staticmethod
    @without_autocast
    def forward(ctx, hidden, weight, targets, chunk, ignore_index, train):
        valid = targets != ignore_index
        count = valid.sum().clamp(min=1)
        labels = targets.where(valid, 0).unsqueeze(1)
        share = (valid / count).unsqueeze(1)  # of each token in the mean
        loss = torch.zeros((), device=hidden.device)
        if train:
            grad_hidden = torch.empty_like(hidden)
            grad_weight = torch.zeros_like(weight)
        for rows in tiles(len(hidden), chunk):
            logits = (hidden[rows] @ weight.mT).float()
            normaliser = logits.logsumexp(1, keepdim=True)
            loss += ((normaliser - logits.gather(1, labels[rows])) * share[rows]).sum()
            if train:
                grad_logits = logits.sub_(normaliser).exp_().mul_(share[rows])
                grad_logits = grad_logits.scatter_add_(1, labels[rows], -share[rows]).to(hidden.dtype)
                grad_hidden[rows] = grad_logits @ weight
                grad_weight += grad_logits.mT @ hidden[rows]
        if train:
            ctx.save_for_backward(grad_hidden, grad_weight.to(weight.dtype))
        return loss
