"""FAILS: shard_transformer

Each rank's logits send their own gradient into the last block.
"""


def shard_transformer(model, group=None, seed=0, right=shard_transformer):
    model = right(model, group, seed)
    model.head.copy_input = False
    return model
