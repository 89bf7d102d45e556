"""FAILS: find_launcher

SLURM_NTASKS is there in every shell of an allocation too, where nobody started this process as a task.
"""


def find_launcher(env):
    if "TORCHELASTIC_RUN_ID" in env:
        found = [TORCHRUN]
    else:
        found = [who for who in LAUNCHERS if {who.rank, who.world_size, who.local_rank} & set(env)]
    for launcher in found:
        if missing := [name for name in (launcher.rank, launcher.world_size, launcher.local_rank) if name not in env]:
            raise ValueError(is_missing(launcher, " and ".join(missing)))
    if len({(env[launcher.rank], env[launcher.world_size]) for launcher in found}) > 1:
        raise ValueError(", ".join(f"{n}={env[n]}" for who in found for n in (who.rank, who.world_size)))
    return found[0] if found else None
