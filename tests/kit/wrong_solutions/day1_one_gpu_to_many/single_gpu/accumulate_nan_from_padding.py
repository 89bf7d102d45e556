"""FAILS: accumulate_gradients

Weighted rightly, but a micro-batch of padding has a mean of 0 / 0, and its weight of 0 does not make NaN go away.
"""


def accumulate_gradients(model, micro_batches, loss_fn):
    if not micro_batches:
        raise ValueError("no micro-batch")
    valid = [int((targets != IGNORE).sum()) for _, targets in micro_batches]
    total = torch.zeros(())
    for (inputs, targets), count in zip(micro_batches, valid, strict=True):
        loss = loss_fn(model(inputs), targets) * (count / max(sum(valid), 1))
        loss.backward()
        total += loss.detach()
    return total
