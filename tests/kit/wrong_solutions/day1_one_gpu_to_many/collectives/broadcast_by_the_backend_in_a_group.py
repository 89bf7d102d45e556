"""FAILS: broadcast

A binomial tree on the default group; in a group of its own the backend's broadcast, which needs no translated ranks.
"""

import torch.distributed as dist


def broadcast(tensor, src, group=None):
    rank, size = check(group, tensor)
    if group is not None:
        if src not in dist.get_process_group_ranks(group):
            raise ValueError(f"src {src} is not in the group")
        dist.broadcast(tensor, src, group=group)
        return
    if not 0 <= src < size:
        raise ValueError(f"src {src} is not one of {size} ranks")
    number = (rank - src) % size
    for distance in powers_of_two(size):
        if number < distance and number + distance < size:
            exchange(group, sends=[(tensor, (rank + distance) % size)])
        elif distance <= number < 2 * distance:
            exchange(group, receives=[(tensor, (rank - distance) % size)])
