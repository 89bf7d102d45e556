def bus_bandwidth(op, num_bytes, seconds, ranks):
    raise RuntimeError('</td><script>alert(1)</script>\x1b[2J\x00\u202e=1+1')
