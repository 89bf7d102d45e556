"""FAILS: place_on_topology, search

Replicas innermost, as if they were the ones in a hurry: every layer of tp waits for the network.
"""


def place_on_topology(layout, cluster, traffic, orders=ORDERS):
    if layout.ranks != cluster.gpus:
        raise ValueError("another number of GPUs")
    placed = replace(layout, order=DIMENSIONS if cluster.gpus <= cluster.gpus_per_node else ("dp", "cp", "pp", "tp"))
    nodes = {
        name: max(len({rank // cluster.gpus_per_node for rank in group}) for group in placed.groups(name))
        for name in traffic
    }
    bandwidth = {name: cluster.inside if nodes[name] == 1 else cluster.between for name in traffic}
    return Placement(placed, nodes, {name: traffic[name] / bandwidth[name] for name in traffic})
