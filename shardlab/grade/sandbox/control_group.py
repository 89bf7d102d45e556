"""A control group: bounds and ends what all processes of a sandbox are together (cgroups(7); root only)."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from pathlib import Path

import psutil

from shardlab.grade.sandbox.limits import Limits

ROOT = Path("/sys/fs/cgroup")
GONE_SECONDS = 5.0


PREFIX = "shardlab-"


def remove_abandoned() -> None:
    """Remove the groups of graders that were killed; a group says in its name whose it is."""
    for parent in (ROOT, ROOT / "memory", ROOT / "pids"):
        for folder in parent.glob(f"{PREFIX}*-*"):
            owner = folder.name.split("-")[1]
            if owner.isdigit() and not psutil.pid_exists(int(owner)):
                with contextlib.suppress(OSError):  # somebody is in it
                    folder.rmdir()


class ControlGroup:
    """The folders of one group: one in a unified hierarchy (version 2), one per controller in a split one (version 1).

    Attributes:
        folders: to write a process id into, before it starts anything; none where no controller is to be had.
    """

    def __init__(self, limits: Limits) -> None:
        self.folders: list[Path] = []
        name = f"{PREFIX}{os.getpid()}-{uuid.uuid4().hex[:12]}"
        settings = _version_2(limits) if (ROOT / "cgroup.controllers").exists() else _version_1(limits)
        for parent, values in settings.items():
            folder = parent / name
            with contextlib.suppress(OSError):
                folder.mkdir(exist_ok=True)
                for file, value in values.items():
                    if (folder / file).exists():  # swap accounting may be switched off
                        (folder / file).write_text(str(value))
                self.folders.append(folder)

    def enter(self) -> tuple[str, ...]:
        """The command that runs its arguments inside the group."""
        if not self.folders:
            return ()
        files = [str(folder / "cgroup.procs") for folder in self.folders]
        script = f'for file in {" ".join(files)}; do echo $$ >"$file"; done; exec "$@"'
        return ("sh", "-c", script, "sh")

    @property
    def killed_for_memory(self) -> int:
        """How many processes the kernel has ended because the group was out of memory."""
        for folder in self.folders:
            for file in ("memory.events", "memory.oom_control"):
                with contextlib.suppress(OSError):
                    for line in (folder / file).read_text().splitlines():
                        if line.startswith("oom_kill "):
                            return int(line.split()[1])
        return 0

    def remove(self) -> None:
        """Once its processes are gone, which the end of their PID namespace sees to."""
        deadline = time.monotonic() + GONE_SECONDS
        for folder in self.folders:
            while folder.exists():
                try:
                    folder.rmdir()
                except OSError:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.01)  # the kernel empties it in its own time


def _version_2(limits: Limits) -> dict[Path, dict[str, object]]:
    return {ROOT: {"memory.max": limits.memory_bytes, "memory.swap.max": 0, "pids.max": limits.processes}}


def _version_1(limits: Limits) -> dict[Path, dict[str, object]]:
    memory = {"memory.limit_in_bytes": limits.memory_bytes, "memory.memsw.limit_in_bytes": limits.memory_bytes}
    settings = {ROOT / "memory": memory, ROOT / "pids": {"pids.max": limits.processes}}
    return {folder: values for folder, values in settings.items() if folder.is_dir()}
