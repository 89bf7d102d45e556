def leave_a_daemon():
    import os
    import time

    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)


real = ring_all_reduce


def ring_all_reduce(tensor, group=None, async_op=False):
    leave_a_daemon()
    return real(tensor, group, async_op)
