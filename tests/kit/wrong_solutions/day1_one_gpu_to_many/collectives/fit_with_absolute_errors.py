"""FAILS: fit_alpha_beta

Plain least squares: 5 % noise on the largest size weighs more than all the small ones, and alpha is lost in it.
"""


def fit_alpha_beta(sizes, seconds, algorithm, ranks):
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(seconds) <= 0 or ranks < 2:
        raise ValueError("need two sizes and two ranks")
    columns = [[predict_seconds(algorithm, size, ranks, *unit) for unit in ((1, 0), (0, 1))] for size in sizes]
    terms = torch.tensor(columns, dtype=torch.float64)
    times = torch.tensor(seconds, dtype=torch.float64)[:, None]
    alpha, beta = torch.linalg.lstsq(terms, times).solution.flatten().tolist()
    return max(alpha, 0.0), max(beta, 0.0)
