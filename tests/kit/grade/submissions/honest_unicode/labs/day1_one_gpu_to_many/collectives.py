real = bus_bandwidth


def bus_bandwidth(op, num_bytes, seconds, ranks):
    print('Δοκιμή 測試 🚀 \udcff'.encode('utf-8', 'replace').decode())
    return real(op, num_bytes, seconds, ranks)
