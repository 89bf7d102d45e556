"""FAILS: predict_seconds, fit_alpha_beta, fastest_algorithm

A tree over 5 ranks has 3 levels; log2 rounded down says 2.
"""

predict_rounded_up = predict_seconds


def predict_seconds(algorithm, num_bytes, ranks, alpha, beta):
    if algorithm in ("broadcast", "tree_all_reduce"):
        ranks = 1 << (ranks.bit_length() - 1)
    return predict_rounded_up(algorithm, num_bytes, ranks, alpha, beta)
