"""FAILS: seed_everything

Augmentation in numpy and shuffling in Python go on differently on every start.
"""


def seed_everything(seed, rank, per_rank=False):
    if seed < 0 or rank < 0:
        raise ValueError(f"seed and rank cannot be negative: got seed {seed}, rank {rank}")
    torch.manual_seed(int(np.random.SeedSequence(seed, spawn_key=(rank,) if per_rank else ()).generate_state(1)[0]))
