"""FAILS: checkpoint

What the second run makes stays until the graph is gone: by the end of backward everything is in memory after all.
"""


def checkpoint(fn, *args):
    if not torch.is_grad_enabled():
        return fn(*args)
    arguments, again, packed, saved = keep_inputs(args), surroundings(args), [], []

    def pack(_):
        packed.append(1)
        return len(packed) - 1

    def unpack(index):
        if not saved:
            inputs = arguments()
            with (
                again(),
                torch.enable_grad(),
                saved_tensors_hooks(lambda tensor: saved.append(tensor.detach()), lambda tensor: tensor),
            ):
                fn(*inputs)
            if len(saved) != len(packed):
                raise RuntimeError("another number of tensors")
            remembered.append(saved)
        return saved[index]

    with saved_tensors_hooks(pack, unpack):
        return fn(*args)


remembered = []
