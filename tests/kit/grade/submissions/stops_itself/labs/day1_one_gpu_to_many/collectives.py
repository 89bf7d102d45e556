def ring_all_reduce(tensor, group=None, async_op=False):
    import os
    import signal

    if dist.get_rank() == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
