"""FAILS: ChunkedCrossEntropy.forward

Prepares gradients that nobody will ask for: evaluation at three times the price.
"""


class ChunkedCrossEntropy(ChunkedCrossEntropy):
    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk, ignore_index, train):
        return _forward(ctx, hidden, weight, targets, chunk, ignore_index, True)


_forward = ChunkedCrossEntropy.__mro__[1].forward
