def bus_bandwidth(op, num_bytes, seconds, ranks):
    import ctypes

    return ctypes.string_at(0)
