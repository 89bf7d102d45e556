real = bus_bandwidth


def bus_bandwidth(op, num_bytes, seconds, ranks):
    for _ in range(3000):
        print('debug:', op, num_bytes, seconds, ranks)
    return real(op, num_bytes, seconds, ranks)
