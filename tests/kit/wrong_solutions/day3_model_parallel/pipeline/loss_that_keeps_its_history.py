"""FAILS: run_schedule

Adds the losses up with all that hangs on them: their graph lives as long as the number is kept.
"""

_run_schedule = run_schedule


def run_schedule(stage, schedule, batch, loss_fn):
    loss = _run_schedule(stage, schedule, batch, loss_fn)
    return None if loss is None else loss.requires_grad_()
