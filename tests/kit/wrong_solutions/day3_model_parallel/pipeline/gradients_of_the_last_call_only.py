"""FAILS: run_schedule

Clears the gradients before it begins: there is no accumulation over several calls.
"""

_run_schedule = run_schedule


def run_schedule(stage, schedule, batch, loss_fn):
    message_order(schedule)
    stage.zero_grad()
    return _run_schedule(stage, schedule, batch, loss_fn)
