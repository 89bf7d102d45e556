"""FAILS: checkpoint

Each saved tensor that backward asks for runs the function again, and the others it makes are thrown away.
"""


def checkpoint(fn, *args):
    if not torch.is_grad_enabled():
        return fn(*args)
    arguments, again, packed = keep_inputs(args), surroundings(args), []

    def pack(_):
        packed.append(1)
        return len(packed) - 1

    def unpack(index):
        inputs, saved = arguments(), []
        with (
            again(),
            torch.enable_grad(),
            saved_tensors_hooks(lambda tensor: saved.append(tensor.detach()), lambda tensor: tensor),
        ):
            fn(*inputs)
        if len(saved) != len(packed):
            raise RuntimeError("another number of tensors")
        return saved[index]

    with saved_tensors_hooks(pack, unpack):
        return fn(*args)
