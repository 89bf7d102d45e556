"""FAILS: accumulate_gradients

Sums first and divides .grad in the end: whatever stood in .grad before is divided too.
"""


def accumulate_gradients(model, micro_batches, loss_fn):
    if not micro_batches:
        raise ValueError("no micro-batch")
    tokens, total = 0, torch.zeros(())
    for inputs, targets in micro_batches:
        count = int((targets != IGNORE).sum())
        if count:
            loss = loss_fn(model(inputs), targets) * count
            loss.backward()
            total += loss.detach()
            tokens += count
    if tokens:
        for parameter in model.parameters():
            parameter.grad /= tokens
    return total / max(tokens, 1)
