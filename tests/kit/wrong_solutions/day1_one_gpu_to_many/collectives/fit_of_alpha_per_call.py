"""FAILS: fit_alpha_beta

Fits seconds = alpha + size x beta, as if every algorithm were one message.
"""


def fit_alpha_beta(sizes, seconds, algorithm, ranks):
    if len(sizes) != len(seconds) or len(set(sizes)) < 2 or min(seconds) <= 0 or ranks < 2:
        raise ValueError("need two sizes and two ranks")
    predict_seconds(algorithm, 0, ranks, 0, 0)
    times = torch.tensor(seconds, dtype=torch.float64)
    terms = torch.stack([1 / times, torch.tensor(sizes, dtype=torch.float64) / times], dim=1)
    alpha, beta = torch.linalg.lstsq(terms, torch.ones_like(terms[:, :1])).solution.flatten().tolist()
    return max(alpha, 0.0), max(beta, 0.0)
