"""FAILS: time_steps

No barrier: the first message of a step waits for the rank that is still busy with the step before.
"""


def time_steps(step, batch, steps):
    real, free = (StepClock(batch.numel(), warmup=0, device=device()) for _ in range(2))
    for _ in range(steps):
        with real.step():
            step(batch)
        with free_messages(), free.step():
            step(batch)
    return real.all_seconds, free.all_seconds
