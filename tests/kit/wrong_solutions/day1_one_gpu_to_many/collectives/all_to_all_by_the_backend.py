"""FAILS: all_to_all

Calls the built-in collective.
"""


def all_to_all(outputs, inputs, group=None):
    rank, size = check(group, *outputs, *inputs)
    if not len(outputs) == len(inputs) == size or outputs[rank].numel() != inputs[rank].numel():
        raise ValueError("need one output and one input per rank")
    received = torch.empty(sum(tensor.numel() for tensor in outputs), dtype=inputs[0].dtype, device=inputs[0].device)
    lengths = [[tensor.numel() for tensor in tensors] for tensors in (outputs, inputs)]
    dist.all_to_all_single(received, torch.cat([flat(tensor) for tensor in inputs]), *lengths, group=group)
    for tensor, block in zip(outputs, received.split(lengths[0]), strict=True):
        flat(tensor).copy_(block)
