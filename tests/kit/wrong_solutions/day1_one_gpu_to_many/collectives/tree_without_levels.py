"""FAILS: tree_all_reduce

Rank 0 receives from everybody in turn: as few messages as a tree, but N-1 rounds up instead of log2 N.
"""


def tree_all_reduce(tensor, group=None):
    rank, size = check(group, tensor)
    total = flat(tensor)
    incoming = torch.empty_like(total)
    for peer in range(1, size):
        if rank == 0:
            exchange(group, receives=[(incoming, peer)])
            total += incoming
        elif rank == peer:
            exchange(group, sends=[(total, 0)])
    broadcast(tensor, dist.get_process_group_ranks(group)[0], group)
