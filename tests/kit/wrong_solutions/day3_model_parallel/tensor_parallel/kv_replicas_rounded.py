"""FAILS: kv_replicas, shard_transformer

4 kv_heads on 6 ranks: a head and a half for each.
"""


def kv_replicas(heads, kv_heads, ranks):
    return max(1, -(-ranks // kv_heads))
