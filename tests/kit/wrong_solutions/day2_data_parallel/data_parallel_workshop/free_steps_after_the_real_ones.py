"""FAILS: time_steps

All real steps, then all free ones: whatever the machine does in the second half looks like communication.
"""


def time_steps(step, batch, steps):
    real, free = (StepClock(batch.numel(), warmup=0, device=device()) for _ in range(2))
    for _ in range(steps):
        dist.barrier()
        with real.step():
            step(batch)
    with free_messages():
        for _ in range(steps):
            dist.barrier()
            with free.step():
                step(batch)
    return real.all_seconds, free.all_seconds
