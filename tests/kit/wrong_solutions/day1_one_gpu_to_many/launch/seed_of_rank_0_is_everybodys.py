"""FAILS: seed_everything

A product looks mixed, but rank 0's own numbers are those that all ranks share: its dropout repeats the weights.
"""


def seed_everything(seed, rank, per_rank=False):
    if seed < 0 or rank < 0:
        raise ValueError(f"seed and rank cannot be negative: got seed {seed}, rank {rank}")
    seed = (seed + (rank * 1_000_003 if per_rank else 0)) % 2**32
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
