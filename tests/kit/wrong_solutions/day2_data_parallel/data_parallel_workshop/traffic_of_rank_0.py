"""FAILS: measure_strategy

The traffic of rank 0 stands for that of all ranks, as if they all sent alike.
"""


def measure_strategy(build, batch, steps):
    ranks = dist.get_world_size()
    if steps < 1 or batch.dim() < 2 or batch.numel() == 0 or batch.shape[0] % ranks:
        raise ValueError("steps and rows, please")
    step, mine = observe_step(build, batch)
    real, free = time_steps(step, batch, steps)
    everyone = [None] * ranks
    dist.all_gather_object(everyone, (mine, real, free))
    observed, real_by_rank, free_by_rank = zip(*everyone, strict=True)
    real, free = ([max(times) for times in zip(*each, strict=True)] for each in (real_by_rank, free_by_rank))
    saved = [1 - without / with_ for with_, without in zip(real, free, strict=True)]
    return Measurement(
        ranks,
        batch.numel(),
        [statistics.fmean(each) for each in zip(*(each.losses for each in observed), strict=True)],
        batch.numel() / statistics.median(real),
        max(each.peak_bytes for each in observed),
        observed[0].sent_bytes,
        max(0.0, statistics.median(saved)),
    )
