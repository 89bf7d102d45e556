"""FAILS: seed_everything

Seed 1 on rank 0 is seed 0 on rank 1: two runs that should be independent share most of their numbers.
"""


def seed_everything(seed, rank, per_rank=False):
    if seed < 0 or rank < 0:
        raise ValueError(f"seed and rank cannot be negative: got seed {seed}, rank {rank}")
    seed += rank * per_rank
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
