"""What the operating system tells about the ranks, and how nothing of theirs survives a call.

Linux: the warm parent is a *subreaper*: every process a rank leaves behind, also one that called setsid and whose
parent is gone, becomes the warm parent's child. Killing children until ``wait`` says there are none therefore leaves
no descendant, without a process list and without ever signalling a process that is not ours.
Elsewhere there is no subreaper; there every process started below the warm parent carries its tag in the environment.
"""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import sys
import time
from pathlib import Path

import psutil

LINUX = sys.platform == "linux"
TAG = "SHARDLAB_POOL"  # environment variable of every process below a warm parent

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_CHILD_SUBREAPER = 36
_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value}) failed")


def adopt_orphans() -> None:
    """Become the parent of whatever a descendant leaves behind (Linux)."""
    if LINUX:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def guard_memory(guarded: bool) -> None:
    """Whether other processes of this user are kept from this one's memory, also through /proc (Linux)."""
    if LINUX:
        _prctl(_PR_SET_DUMPABLE, int(not guarded))


def die_with_parent(parent: int) -> None:
    """Be killed when process `parent` ends (Linux; elsewhere the release pipe closes and ends the rank)."""
    if LINUX:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)


def kill(pid: int) -> None:
    """SIGKILL one child of ours; one that is gone is fine."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def kill_descendants(within: float = 10.0) -> None:
    """Kill and reap all of this process's children, and theirs, until there are none.

    Raises:
        TimeoutError: a process is still there after `within` seconds (stuck in the kernel).
    """
    deadline = time.monotonic() + within
    while _reap() or _strays():
        for pid in {*_children(), *_strays()}:
            kill(pid)
        if time.monotonic() > deadline:
            raise TimeoutError(f"processes {_children()} do not end after SIGKILL")
        time.sleep(0.001)  # between SIGKILL and its effect; only reached when a rank left something behind


def _reap() -> bool:
    """Collect children that have ended; whether others are left."""
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:  # not Linux, or a kernel without CONFIG_PROC_CHILDREN
        return [child.pid for child in psutil.Process().children(recursive=True)]


def _strays() -> list[int]:
    """Processes with our tag that are no longer below us: only where there is no subreaper."""
    if LINUX:
        return []
    return tagged_processes(os.environ[TAG])


def tagged_processes(tag: str) -> list[int]:
    """Other processes of this user whose environment carries `tag`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(TAG) == tag:
                found.append(process.pid)
        except psutil.Error:  # gone meanwhile, or somebody else's
            continue
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, all its threads; 0 when it is gone."""
    try:
        times = psutil.Process(pid).cpu_times()
    except psutil.Error:
        return 0.0
    return times.user + times.system


def waits_on_lock(pid: int) -> bool | None:
    """Whether the main thread sits in a futex, where a blocked collective or handle waits.

    A rank that sleeps, reads a file or waits for a child of its own is elsewhere. None: this system does not tell.
    """
    try:
        number = Path(f"/proc/{pid}/syscall").read_text().split()[0]
    except (OSError, IndexError):
        return None
    return None if _FUTEX is None else number == str(_FUTEX)
