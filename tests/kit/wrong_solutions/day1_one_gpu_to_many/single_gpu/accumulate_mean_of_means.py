"""FAILS: accumulate_gradients

Every micro-batch weighs the same: 3 tokens with gradient 1 and 1 token with gradient 5 give 3.0.
"""


def accumulate_gradients(model, micro_batches, loss_fn):
    if not micro_batches:
        raise ValueError("no micro-batch")
    total = torch.zeros(())
    for inputs, targets in micro_batches:
        if (targets != IGNORE).any():
            loss = loss_fn(model(inputs), targets) / len(micro_batches)
            loss.backward()
            total += loss.detach()
    return total
