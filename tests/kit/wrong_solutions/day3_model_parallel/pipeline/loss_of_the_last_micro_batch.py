"""FAILS: run_schedule

Right gradients; what it returns is the loss of whichever micro-batch came last.
"""

_run_schedule = run_schedule


def run_schedule(stage, schedule, batch, loss_fn):
    parts = []

    def noting(*inputs):
        parts.append(loss_fn(*inputs))
        return parts[-1]

    loss = _run_schedule(stage, schedule, batch, noting)
    return None if loss is None else parts[-1].detach()
