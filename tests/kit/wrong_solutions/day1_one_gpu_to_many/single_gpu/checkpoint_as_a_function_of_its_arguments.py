"""FAILS: checkpoint

The first design of PyTorch, in which the checkpoint is an autograd.Function of its arguments: where none of them
requires a gradient, the parameters inside get none either, and results in lists are lost on it.
"""


class Reentrant(torch.autograd.Function):
    @staticmethod
    def forward(ctx, fn, again, *args):
        ctx.fn, ctx.again, ctx.args = fn, again, args
        return fn(*args)

    @staticmethod
    def backward(ctx, *grads):
        args = [arg.detach().requires_grad_(arg.requires_grad) if isinstance(arg, Tensor) else arg for arg in ctx.args]
        with ctx.again(), torch.enable_grad():
            result = ctx.fn(*args)
        torch.autograd.backward(result, grads)
        return (None, None, *(arg.grad if isinstance(arg, Tensor) else None for arg in args))


def checkpoint(fn, *args):
    return Reentrant.apply(fn, surroundings(args), *args)
