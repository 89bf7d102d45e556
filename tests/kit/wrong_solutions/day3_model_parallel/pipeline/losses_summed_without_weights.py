"""FAILS: run_schedule

The mean losses of the micro-batches added up: with four of them, three calls give 12 times one call's gradient.
"""

_run_schedule = run_schedule


def run_schedule(stage, schedule, batch, loss_fn):
    return _run_schedule(stage, schedule, [part._replace(weight=1.0) for part in batch], loss_fn)
