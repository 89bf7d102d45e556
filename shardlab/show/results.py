"""Results that carry their own evidence: what ran, where, with which versions."""

import importlib.metadata
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

from shardlab.show.files import write_text
from shardlab.show.rank_zero import is_rank_zero

PACKAGES = ("shardlab", "torch", "numpy")


def write_results(topic: str, data: dict) -> Path:
    """Write results/<topic>.json below the working folder: atomically, on rank 0 only.

    Args:
        topic: a lesson's slug, such as "collectives".
        data: names to plain data; numpy and torch scalars, arrays and tensors become numbers and lists.

    Returns:
        The path, on every rank.

    Raises:
        ValueError: a topic that is no plain name, or a number that is not finite (JSON has none).
        TypeError: something that JSON cannot hold.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", topic) or topic.startswith("."):
        raise ValueError(f"a topic is a plain name such as 'collectives', got {topic!r}")
    path = Path("results") / f"{topic}.json"
    if is_rank_zero():
        record = {"topic": topic, **evidence(), "data": data}
        write_text(path, json.dumps(record, indent=2, allow_nan=False, default=plain) + "\n")
    return path


def evidence() -> dict:
    """Time, command, commit, machine and versions of this run."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.executable).name, *sys.argv]),
        "commit": commit(),
        "machine": machine(),
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def machine() -> dict:
    """System, processor, cores this process may use, memory, GPUs (of torch, where it is imported)."""
    torch = sys.modules.get("torch")
    gpus = range(torch.cuda.device_count()) if torch is not None and torch.cuda.is_available() else []
    return {
        "system": platform.platform(terse=True),
        "processor": processor(),
        "cores": usable_cores(),
        "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30, 1),
        "gpus": [torch.cuda.get_device_name(index) for index in gpus],
    }


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """The processor's name: Linux tells it in /proc/cpuinfo, other systems through the platform module."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def commit() -> str | None:
    """The checkout's commit, with "+" when files differ from it; None outside git."""
    checkout = Path(__file__).parent
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"],
            cwd=checkout,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None


def version(package: str) -> str | None:
    """The installed version of a package, None without it."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def plain(value: object) -> object:
    """What `json` asks for when it meets a numpy or torch value, or a path."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"results hold plain data; {type(value).__name__} is none")
