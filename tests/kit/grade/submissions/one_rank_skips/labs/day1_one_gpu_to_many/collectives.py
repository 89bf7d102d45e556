def ring_all_reduce(tensor, group=None, async_op=False):
    if dist.get_rank() == 0:
        dist.recv(tensor, 1, tag=7)
