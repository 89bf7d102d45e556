"""FAILS: checkpoint

Keeps everything, and runs the function once more in backward so that the calls add up.
"""


def checkpoint(fn, *args):
    result = fn(*args)
    if torch.is_grad_enabled():
        again, done = surroundings(args), []

        def rerun(_):
            if not done:
                done.append(1)
                with again(), torch.no_grad():
                    fn(*args)

        tensors = result if isinstance(result, tuple) else (result,)
        next(tensor for tensor in tensors if isinstance(tensor, Tensor)).register_hook(rerun)
    return result
