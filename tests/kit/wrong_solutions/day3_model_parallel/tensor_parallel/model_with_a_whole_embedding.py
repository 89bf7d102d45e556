"""FAILS: shard_transformer

The table of the vocabulary is the largest matrix of a small model, and here it is whole on every rank.
"""


def shard_transformer(model, group=None, seed=0, right=shard_transformer):
    embedding = nn.Embedding.from_pretrained(model.embedding.weight.detach().clone(), freeze=False)
    model = right(model, group, seed)
    model.embedding = embedding
    return model
