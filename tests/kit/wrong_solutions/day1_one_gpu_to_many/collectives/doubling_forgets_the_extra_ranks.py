"""FAILS: recursive_doubling_all_reduce

Ranks without a partner sit the round out: right for powers of two, and only there.
"""


def recursive_doubling_all_reduce(tensor, group=None):
    rank, size = check(group, tensor)
    total = flat(tensor)
    incoming = torch.empty_like(total)
    for distance in powers_of_two(size):
        partner = rank ^ distance
        if partner < size:
            exchange(group, sends=[(total, partner)], receives=[(incoming, partner)])
            total += incoming
