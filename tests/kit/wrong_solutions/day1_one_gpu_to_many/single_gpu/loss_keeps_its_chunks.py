"""FAILS: ChunkedCrossEntropy.forward

In chunks, each of which autograd keeps for backward: no large tensor, but all of the logits.
"""


class ChunkedCrossEntropy(ChunkedCrossEntropy):
    @staticmethod
    def apply(hidden, weight, targets, chunk, ignore_index, train):
        from torch.nn import functional

        total = 0.0
        for rows in tiles(len(hidden), chunk):
            logits = (hidden[rows] @ weight.mT).float()
            total = total + functional.cross_entropy(logits, targets[rows], ignore_index=ignore_index, reduction="sum")
        return Named.apply(total / (targets != ignore_index).sum().clamp(min=1))


forward = staticmethod(lambda ctx, loss: loss.clone())
backward = staticmethod(lambda ctx, grad: grad)
Named = type("ChunkedCrossEntropy", (torch.autograd.Function,), {"forward": forward, "backward": backward})
