"""FAILS: accumulate_gradients

Weighted by the number of targets, of which some are padding.
"""


def accumulate_gradients(model, micro_batches, loss_fn):
    if not micro_batches:
        raise ValueError("no micro-batch")
    sizes = [targets.numel() for _, targets in micro_batches]
    total = torch.zeros(())
    for (inputs, targets), size in zip(micro_batches, sizes, strict=True):
        if (targets != IGNORE).any():
            loss = loss_fn(model(inputs), targets) * (size / sum(sizes))
            loss.backward()
            total += loss.detach()
    return total
