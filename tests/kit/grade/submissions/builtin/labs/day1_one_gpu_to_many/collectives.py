def ring_all_reduce(tensor, group=None, async_op=False):
    dist.all_reduce(tensor, group=group)
