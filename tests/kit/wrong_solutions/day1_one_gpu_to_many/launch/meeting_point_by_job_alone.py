"""FAILS: meeting_point

Two steps of one job, started with & in a batch script, meet at the same port.
"""

_by_job_and_step = meeting_point


def meeting_point(env, launcher):
    return _by_job_and_step({name: text for name, text in env.items() if name != "SLURM_STEP_ID"}, launcher)
