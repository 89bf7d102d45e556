"""FAILS: recursive_doubling_all_reduce

`torch.empty(n)` is float32 whatever the tensor is: bf16 and int64 arrive as garbage, or not at all.
"""


def recursive_doubling_all_reduce(tensor, group=None):
    rank, size = check(group, tensor)
    total = flat(tensor)
    incoming = torch.empty(total.numel())
    power = 1 << (size.bit_length() - 1)
    if rank >= power:
        exchange(group, sends=[(total, rank - power)])
        exchange(group, receives=[(total, rank - power)])
        return
    extra = [rank + power] if rank + power < size else []
    for peer in extra:
        exchange(group, receives=[(incoming, peer)])
        total += incoming.to(total.dtype)
    for distance in powers_of_two(power):
        exchange(group, sends=[(total, rank ^ distance)], receives=[(incoming, rank ^ distance)])
        total += incoming.to(total.dtype)
    exchange(group, sends=[(total, peer) for peer in extra])
