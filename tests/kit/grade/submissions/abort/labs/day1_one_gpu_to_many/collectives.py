def bus_bandwidth(op, num_bytes, seconds, ranks):
    import os

    os.abort()
