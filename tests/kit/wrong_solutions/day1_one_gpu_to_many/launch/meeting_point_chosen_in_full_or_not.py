"""FAILS: meeting_point

A MASTER_PORT without MASTER_ADDR, or the other way round, is ignored: rank 0 takes the port that was to be avoided.
"""

_chosen_or_derived = meeting_point


def meeting_point(env, launcher):
    if launcher is SLURM and not (env.get("MASTER_ADDR") and env.get("MASTER_PORT")):
        env = {name: text for name, text in env.items() if not name.startswith("MASTER_")}
    return _chosen_or_derived(env, launcher)
