"""FAILS: find_launcher, Environment.from_env

Under `srun torchrun` the variables of Slurm describe torchrun, not its workers: every worker of a node would be the
same rank.
"""


def find_launcher(env):
    found = [launcher for launcher in LAUNCHERS[::-1] if any(sign in env for sign in launcher.signs)]
    for launcher in found:
        if missing := [name for name in (launcher.rank, launcher.world_size, launcher.local_rank) if name not in env]:
            raise ValueError(is_missing(launcher, " and ".join(missing)))
    return found[0] if found else None
