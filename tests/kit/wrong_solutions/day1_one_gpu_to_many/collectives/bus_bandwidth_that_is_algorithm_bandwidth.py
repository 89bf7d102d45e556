"""FAILS: bus_bandwidth

Size / time, without what a rank must send per byte: it falls with N although the links are as busy as before.
"""


def bus_bandwidth(op, num_bytes, seconds, ranks):
    if op not in ("all_reduce", "reduce_scatter", "all_gather", "all_to_all", "broadcast", "reduce"):
        raise ValueError(f"unknown op {op!r}")
    if seconds <= 0 or ranks < 1 or num_bytes < 0:
        raise ValueError("need time, ranks and bytes")
    return num_bytes / seconds
