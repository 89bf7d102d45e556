"""FAILS: meeting_point

A step may run on other nodes of the job than the first: nobody listens there.
"""

_on_the_step = meeting_point


def meeting_point(env, launcher):
    return _on_the_step({name: text for name, text in env.items() if name != "SLURM_STEP_NODELIST"}, launcher)
