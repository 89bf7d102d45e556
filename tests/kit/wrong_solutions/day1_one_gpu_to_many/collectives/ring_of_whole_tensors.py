"""FAILS: ring_all_reduce

The ring without chunks: N-1 rounds, each with the whole tensor. Right values, N/2 times the bytes.
"""


def ring_all_reduce(tensor, group=None, async_op=False):
    rank, size = check(group, tensor)
    tag = next_tag(group)

    def pass_everything_on():
        outgoing, incoming = flat(tensor).clone(), torch.empty_like(flat(tensor))
        for _ in range(size - 1):
            exchange(group, [(outgoing, (rank + 1) % size)], [(incoming, (rank - 1) % size)], tag)
            flat(tensor).add_(incoming)
            outgoing, incoming = incoming, outgoing

    return Handle(pass_everything_on, tensor.device) if async_op else pass_everything_on()
