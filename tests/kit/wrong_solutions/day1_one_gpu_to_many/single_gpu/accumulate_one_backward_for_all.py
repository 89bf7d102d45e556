"""FAILS: accumulate_gradients

The right gradient from one backward on the sum: the activations of all micro-batches are alive at once, which is what
accumulation is there to avoid.
"""


def accumulate_gradients(model, micro_batches, loss_fn):
    if not micro_batches:
        raise ValueError("no micro-batch")
    valid = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    losses = [
        loss_fn(model(inputs), targets) * (count / sum(valid))
        for (inputs, targets), count in zip(micro_batches, valid, strict=True)
        if count
    ]
    if not losses:
        return torch.zeros(())
    sum(losses).backward()
    return sum(losses).detach()
