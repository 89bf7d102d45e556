"""Checks of what every lesson needs: Python, torch, the pinned packages, ranks, the notebooks' kernel."""

import platform
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from shardlab.doctor.finding import Finding, limited, missing, pip_install, works
from shardlab.syllabus import ROOT

OLDEST_PYTHON = (3, 11)
PIN = re.compile(r"([A-Za-z0-9._-]+)==(\S+)")
REINSTALL = pip_install("-r requirements.txt -e .")


def python() -> Finding:
    found = f"{platform.python_version()} at {sys.executable}"
    return works(found) if sys.version_info >= OLDEST_PYTHON else missing(found, "make clean && make tour")


def torch() -> Finding:
    try:
        import torch
        import torch.distributed as dist
    except (ImportError, OSError) as error:  # OSError: a shared library of torch does not load
        return missing(str(error), REINSTALL)
    if not dist.is_available() or not dist.is_gloo_available():
        return missing(f"{torch.__version__} is built without gloo", pip_install("--force-reinstall torch==2.13.0"))
    return works(f"{torch.__version__} with gloo{' and NCCL' if dist.is_nccl_available() else ''}")


def packages(requirements: Path = ROOT / "requirements.txt") -> Finding:
    """Installed versions against the pins of `requirements`."""
    wrong = [f"{name} is {have or 'missing'}, pinned {pin}" for name, pin, have in _pins(requirements) if have != pin]
    if not wrong:
        return works(f"as pinned in {requirements.name}")
    return limited("; ".join(wrong[:3]) + (f"; {len(wrong) - 3} more" if len(wrong) > 3 else ""), REINSTALL)


def _pins(requirements: Path) -> Iterator[tuple[str, str, str | None]]:
    for match in map(PIN.match, requirements.read_text(encoding="utf-8").splitlines()):
        if match:
            name, pin = match.groups()
            try:
                yield name, pin, version(name).partition("+")[0]  # 2.13.0+cpu is a build of 2.13.0
            except PackageNotFoundError:
                yield name, pin, None


def ranks() -> Finding:
    """Two real ranks meet in an all-reduce."""
    from shardlab.ranks import RankError, run_ranks

    try:
        sums = run_ranks(_sum_over_ranks, 2, timeout=30)
    except (RankError, OSError) as error:
        return missing(str(error).partition("\n")[0], "hostname  # its name must stand in /etc/hosts")
    return works(f"2 ranks met in an all-reduce and got {sums}")


def _sum_over_ranks() -> int:
    import torch
    import torch.distributed as dist

    value = torch.tensor(dist.get_rank() + 1)
    dist.all_reduce(value)
    return int(value)


def jupyter_kernel() -> Finding:
    """The kernel that the notebooks name starts, and finds the labs."""
    try:
        from jupyter_client.manager import start_new_kernel

        manager, client = start_new_kernel(kernel_name="python3", startup_timeout=60, stderr=subprocess.DEVNULL)
    except (ImportError, OSError, RuntimeError, LookupError) as error:
        return missing(f"does not start: {error}", REINSTALL)
    try:
        reply = client.execute_interactive("import labs, shardlab", timeout=30, store_history=False)["content"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
    return works("starts and finds labs") if reply["status"] == "ok" else missing(reply["evalue"], REINSTALL)
