"""FAILS: ChunkedCrossEntropy.backward

Hands out what forward prepared and ignores what comes from above: wrong under loss scaling and accumulation.
"""


class ChunkedCrossEntropy(ChunkedCrossEntropy):
    @staticmethod
    def backward(ctx, grad_output):
        return *ctx.saved_tensors, None, None, None, None
