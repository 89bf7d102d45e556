"""FAILS: predict_seconds, fit_alpha_beta, fastest_algorithm

Counts one half of the ring: N-1 rounds and (N-1)/N of the bytes. Fits and choices inherit the factor 2.
"""

predict_all_of_it = predict_seconds


def predict_seconds(algorithm, num_bytes, ranks, alpha, beta):
    seconds = predict_all_of_it(algorithm, num_bytes, ranks, alpha, beta)
    return seconds / 2 if algorithm == "ring_all_reduce" else seconds
