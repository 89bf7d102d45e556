"""FAILS: all_to_all

Sends and receives everything, and forgets the block that stays.
"""


def all_to_all(outputs, inputs, group=None):
    rank, size = check(group, *outputs, *inputs)
    if not len(outputs) == len(inputs) == size or outputs[rank].numel() != inputs[rank].numel():
        raise ValueError("need one output and one input per rank")
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        exchange(group, sends=[(inputs[to], to)], receives=[(outputs[source], source)])
