"""FAILS: broadcast

Everybody passes the tensor on to the next rank: one message each, but N-1 rounds.
"""


def broadcast(tensor, src, group=None):
    rank, size = check(group, tensor)
    members = dist.get_process_group_ranks(group)
    if src not in members:
        raise ValueError(f"src {src} is not in {members}")
    number = (rank - members.index(src)) % size
    if number > 0:
        exchange(group, receives=[(tensor, (rank - 1) % size)])
    if number < size - 1:
        exchange(group, sends=[(tensor, (rank + 1) % size)])
