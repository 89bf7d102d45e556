"""FAILS: check_schedule, run_schedule

Knows that something is wrong and does not say what.
"""

_check_schedule = check_schedule


def check_schedule(schedule):
    return ["the schedule is invalid"] if _check_schedule(schedule) else []
