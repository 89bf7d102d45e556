"""FAILS: parallelize

One's own layers under another name.
"""


def parallelize(model, mesh):
    return shard_transformer(model, mesh.get_group())
