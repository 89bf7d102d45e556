"""FAILS: shard_transformer

Embedding and head each got a copy: two weights, each with half of the gradient.
"""


def shard_transformer(model, group=None, seed=0, dense=shard_transformer):
    model = dense(model, group, seed)
    model.head.weight = nn.Parameter(model.head.weight.detach().clone())
    return model
