"""FAILS: measure_strategy

Each rank reports itself: the fullest and the slowest one may be another.
"""


def measure_strategy(build, batch, steps):
    ranks = dist.get_world_size()
    if steps < 1 or batch.dim() < 2 or batch.numel() == 0 or batch.shape[0] % ranks:
        raise ValueError("steps and rows, please")
    step, mine = observe_step(build, batch)
    real, free = time_steps(step, batch, steps)
    seconds = statistics.median(real)
    return Measurement(
        ranks,
        batch.numel(),
        mine.losses,
        batch.numel() / seconds,
        mine.peak_bytes,
        mine.sent_bytes,
        max(0.0, 1 - statistics.median(free) / seconds),
    )
