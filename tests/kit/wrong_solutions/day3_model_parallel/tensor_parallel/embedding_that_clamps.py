"""FAILS: VocabParallelEmbedding, shard_transformer

Foreign tokens look up the nearest row, and it is added.
"""


class VocabParallelEmbedding(VocabParallelEmbedding):
    def forward(self, tokens):
        rows = self.weight.shape[0]
        local = (tokens - position(self.group)[0] * rows).clamp(0, rows - 1)
        return reduce_from_ranks(F.embedding(local, self.weight), self.group)
