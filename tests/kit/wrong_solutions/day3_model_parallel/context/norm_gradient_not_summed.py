"""FAILS: SequenceParallelNorm, sequence_parallel

Each rank's weight learns from its own tokens alone. Nothing fails; the ranks' norms drift apart.
"""


class SequenceParallelNorm(SequenceParallelNorm):
    def forward(self, x):
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)
