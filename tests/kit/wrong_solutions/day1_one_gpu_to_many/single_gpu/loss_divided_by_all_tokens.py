"""FAILS: ChunkedCrossEntropy.forward, ChunkedCrossEntropy.backward

The mean over all targets, padding too.
"""


def chunked_cross_entropy(hidden, weight, targets, chunk=1024, ignore_index=IGNORE):
    train = torch.is_grad_enabled() and (hidden.requires_grad or weight.requires_grad)
    loss = ChunkedCrossEntropy.apply(hidden.flatten(0, -2), weight, targets.flatten(), chunk, ignore_index, train)
    return loss * ((targets != ignore_index).sum() / targets.numel())


class ChunkedCrossEntropy(ChunkedCrossEntropy): ...
