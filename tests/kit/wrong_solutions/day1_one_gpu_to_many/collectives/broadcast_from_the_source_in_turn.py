"""FAILS: broadcast

The source sends to everybody itself: N-1 rounds, while all the others have nothing to do.
"""


def broadcast(tensor, src, group=None):
    rank, size = check(group, tensor)
    members = dist.get_process_group_ranks(group)
    if src not in members:
        raise ValueError(f"src {src} is not in {members}")
    root = members.index(src)
    for peer in range(size):
        if peer != root and rank == root:
            exchange(group, sends=[(tensor, peer)])
        elif peer != root and rank == peer:
            exchange(group, receives=[(tensor, root)])
