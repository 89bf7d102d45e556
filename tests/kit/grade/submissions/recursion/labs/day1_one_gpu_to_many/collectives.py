def bus_bandwidth(op, num_bytes, seconds, ranks):
    return bus_bandwidth(op, num_bytes, seconds, ranks)
