"""FAILS: check_schedule, run_schedule

Everything is there, once and in its place, so it says all is well; nobody asked whether the order can be run.
"""

_check_schedule = check_schedule


def check_schedule(schedule):
    return [problem for problem in _check_schedule(schedule) if " waits for " not in problem]
