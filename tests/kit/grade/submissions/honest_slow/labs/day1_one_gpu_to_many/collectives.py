real = bus_bandwidth


def bus_bandwidth(op, num_bytes, seconds, ranks):
    import time

    time.sleep(0.02)
    return real(op, num_bytes, seconds, ranks)
