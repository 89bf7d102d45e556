"""FAILS: meeting_point, Environment.from_env

29500 for everybody: the second job on a machine finds the port taken, or joins the first.
"""


def meeting_point(env, launcher):
    address = env.get("MASTER_ADDR")
    if launcher is SLURM and not address:
        nodelist = value(env, launcher, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
        address = expand_nodelist(nodelist)[0]
    if launcher is OPEN_MPI and env.get("OMPI_COMM_WORLD_LOCAL_SIZE") == env[launcher.world_size]:
        address = address or "127.0.0.1"
    return address or value(env, launcher, "MASTER_ADDR"), int(env.get("MASTER_PORT", 29500))
