"""FAILS: all_gather

Starts to send and then finds that the output is too short: its neighbour waits for the rest.
"""


def all_gather(output, input, group=None):
    rank, size = check(group, output, input)
    whole = torch.empty(size * input.numel(), dtype=input.dtype, device=input.device)
    blocks = whole.tensor_split(size)
    blocks[rank].copy_(flat(input))
    all_gather_chunks(blocks, group)
    if output.numel() != whole.numel():
        raise ValueError("output needs one block per rank")
    flat(output).copy_(whole)
