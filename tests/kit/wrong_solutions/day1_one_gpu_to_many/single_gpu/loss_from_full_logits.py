"""FAILS: ChunkedCrossEntropy.forward

The plain loss inside the Function: right numbers, and all logits at once.
"""


class ChunkedCrossEntropy(ChunkedCrossEntropy):
    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk, ignore_index, train):
        return _forward(ctx, hidden, weight, targets, max(len(hidden), 1), ignore_index, train)


_forward = ChunkedCrossEntropy.__mro__[1].forward
