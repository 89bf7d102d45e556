"""FAILS: find_launcher

Old variables of torchrun in a shell's profile: each task of srun is the same rank of a small world of its own.
"""


def find_launcher(env):
    for launcher in LAUNCHERS:
        if any(sign in env for sign in launcher.signs):
            if missing := [n for n in (launcher.rank, launcher.world_size, launcher.local_rank) if n not in env]:
                raise ValueError(is_missing(launcher, " and ".join(missing)))
            return launcher
    return None
