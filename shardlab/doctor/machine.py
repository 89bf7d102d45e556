"""Checks of the machine: cores, memory, disk, shared memory, GPUs, ports."""

import os
import shutil
import socket
from pathlib import Path

from shardlab.doctor.finding import Finding, limited, missing, pip_install, works
from shardlab.show import usable_cores
from shardlab.syllabus import ROOT

GIB = 2**30
MIB = 2**20
TORCHRUN_PORT = 29500


def checkout() -> Finding:
    if os.access(ROOT, os.W_OK):
        return works(f"{ROOT} is writable")
    return missing(f"{ROOT} is not writable", f"cp -r {ROOT} ~/shardlab && cd ~/shardlab && make tour")


def cores() -> Finding:
    usable: float = usable_cores()
    quota = _cgroup("cpu.max")
    if quota and quota[0] != "max":
        usable = min(usable, int(quota[0]) / int(quota[1]))
    return works(f"{usable:g}") if usable >= 2 else limited(f"{usable:g}; the course is paced for 2")


def memory() -> Finding:
    import psutil

    available = psutil.virtual_memory().available
    limit, used = _cgroup("memory.max"), _cgroup("memory.current")
    if limit and used and limit[0] != "max":
        available = min(available, int(limit[0]) - int(used[0]))
    found = f"{available / GIB:.1f} GiB free"
    return works(found) if available >= 4 * GIB else limited(f"{found}; 8 ranks want 4 GiB")


def _cgroup(name: str) -> list[str] | None:
    """Words of a cgroup v2 file of this process's own group; None where there is none."""
    try:
        group = Path("/proc/self/cgroup").read_text().splitlines()[-1].partition("::")[2]
        return (Path("/sys/fs/cgroup") / group.lstrip("/") / name).read_text().split()
    except (OSError, IndexError):
        return None


def disk() -> Finding:
    free = shutil.disk_usage(ROOT).free
    found = f"{free / GIB:.1f} GiB free"
    return works(found) if free >= 3 * GIB else limited(f"{found}; checkpoints and packages want 3 GiB")


def shared_memory() -> Finding:
    """Containers start with 64 MiB of /dev/shm, where NCCL and data-loader workers die of a bus error."""
    folder = Path("/dev/shm")
    if not folder.is_dir():
        return limited("there is no /dev/shm on this system")
    size = shutil.disk_usage(folder).total
    return (
        works(f"{size / GIB:.1f} GiB") if size >= GIB else limited(f"{size / MIB:.0f} MiB", "docker run --shm-size=8g")
    )


def gpus() -> Finding:
    import torch

    if torch.cuda.is_available():
        cards = [torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())]
        names = ", ".join(f"{card.name} with {card.total_memory / GIB:.0f} GiB" for card in cards)
        return works(f"{names}; NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
    if shutil.which("nvidia-smi"):
        fix = f"nvidia-smi && {pip_install('--force-reinstall torch==2.13.0')}"
        return limited(f"there is a driver, but torch {torch.__version__} sees no GPU", fix)
    return missing("none; ranks run on the CPU over gloo, and every lesson works")


def ports() -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", TORCHRUN_PORT))
        except OSError:
            fix = "torchrun --standalone ...  # takes a free port"
            return limited(f"{TORCHRUN_PORT}, the default of torchrun, is in use", fix)
    return works(f"{TORCHRUN_PORT}, the default of torchrun, is free")
