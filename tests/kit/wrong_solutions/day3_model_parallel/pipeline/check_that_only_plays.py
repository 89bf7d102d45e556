"""FAILS: check_schedule, run_schedule

Runs the schedule and is content if it gets through: an action that is missing at the end, or stands there twice, is
never seen.
"""

_check_schedule = check_schedule


def check_schedule(schedule):
    found = _check_schedule(schedule)
    return [problem for problem in found if "missing" not in problem and "twice" not in problem]
