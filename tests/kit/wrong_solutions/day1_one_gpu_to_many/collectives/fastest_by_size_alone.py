"""FAILS: fastest_algorithm

A threshold in bytes: where it lies depends on the ranks, on alpha and on beta.
"""


def fastest_algorithm(num_bytes, ranks, alpha, beta):
    if ranks < 1 or num_bytes < 0:
        raise ValueError("need ranks and bytes")
    return "recursive_doubling_all_reduce" if num_bytes < 64 * 1024 else "ring_all_reduce"
