"""FAILS: shard_transformer

Every rank drops other elements of a residual stream that should be the same everywhere.
"""


def shard_transformer(model, group=None, seed=0, right=shard_transformer):
    p = model.config.dropout
    model = right(model, group, seed)
    for block in model.blocks:
        block.dropout = nn.Dropout(p)
    return model
