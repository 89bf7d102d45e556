"""FAILS: observe_step, measure_strategy

Reports what theory says of DDP and measures nothing: right for one strategy, blind to what was planted.
"""


def observe_step(build, batch):
    step = build()
    losses = [step(batch).item() for _ in range(WARM_UP + 1)]
    ranks = dist.get_world_size()
    parameters = 4 * 24 * 60 * 60
    return step, Observation(losses, 4 * parameters, 2 * parameters * (ranks - 1) // ranks)
