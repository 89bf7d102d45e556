"""FAILS: all_to_all

Takes all blocks to be as long as the average one.
"""


def all_to_all(outputs, inputs, group=None):
    rank, size = check(group, *outputs, *inputs)
    if not len(outputs) == len(inputs) == size or outputs[rank].numel() != inputs[rank].numel():
        raise ValueError("need one output and one input per rank")
    numel = sum(tensor.numel() for tensor in inputs) // size
    blocks = torch.cat([flat(tensor) for tensor in inputs])[: numel * size].tensor_split(size)
    received = [torch.empty_like(block) for block in blocks]
    received[rank].copy_(blocks[rank])
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        exchange(group, sends=[(blocks[to], to)], receives=[(received[source], source)])
    for tensor, block in zip(outputs, received, strict=True):
        flat(tensor)[: block.numel()].copy_(block[: tensor.numel()])
