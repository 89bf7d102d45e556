"""FAILS: tree_all_reduce

The sum goes up the tree and stays there: a reduce. The others keep partial sums.
"""


def tree_all_reduce(tensor, group=None):
    rank, size = check(group, tensor)
    total = flat(tensor)
    incoming = torch.empty_like(total)
    for distance in reversed(powers_of_two(size)):
        if rank < distance and rank + distance < size:
            exchange(group, receives=[(incoming, rank + distance)])
            total += incoming
        elif distance <= rank < 2 * distance:
            exchange(group, sends=[(total, rank - distance)])
