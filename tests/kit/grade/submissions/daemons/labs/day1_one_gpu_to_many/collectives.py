def leave_a_daemon():
    import os
    import time

    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)


def bus_bandwidth(op, num_bytes, seconds, ranks):
    if ranks < 3:
        leave_a_daemon()
    return 0.0
