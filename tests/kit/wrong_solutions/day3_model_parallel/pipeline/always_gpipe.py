"""FAILS: run_schedule

Runs the forwards first, then the backwards, whatever order the schedule has: right gradients, and all micro-batches
in flight.
"""

_run_schedule = run_schedule


def run_schedule(stage, schedule, batch, loss_fn):
    message_order(schedule)
    actions = tuple(
        tuple(sorted(own, key=lambda a: (a.kind == "B", a.micro_batch, a.stage if a.kind == "F" else -a.stage)))
        for own in schedule.actions
    )
    plan = Schedule(schedule.name, schedule.placement, schedule.micro_batches, actions)
    return _run_schedule(stage, plan, batch, loss_fn)
