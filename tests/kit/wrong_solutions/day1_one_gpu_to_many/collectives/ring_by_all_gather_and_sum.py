"""FAILS: ring_all_reduce

Gathers all tensors on every rank and sums them there: right values, N/2 times the bytes and N times the memory.
"""


def ring_all_reduce(tensor, group=None, async_op=False):
    _, size = check(group, tensor)

    def gather_and_sum():
        gathered = torch.empty(size, tensor.numel(), dtype=tensor.dtype, device=tensor.device)
        all_gather(gathered, tensor, group)
        flat(tensor).copy_(sum(gathered))

    return Handle(gather_and_sum, tensor.device) if async_op else gather_and_sum()
