"""How well this machine can isolate a submission, and what is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum

PROBE_SECONDS = 20


class Level(StrEnum):
    FULL = "full"
    USER = "user"
    NONE = "none"


@dataclass(frozen=True)
class Isolation:
    """The best level of this machine, and why it is no better.

    Attributes:
        reason: what is missing and what to do about it; "" at the full level.
    """

    level: Level
    reason: str


def isolation() -> Isolation:
    """Find out by trying: whether namespaces can be made depends on kernel, container and administrator."""
    if sys.platform != "linux":
        return Isolation(
            Level.NONE,
            "namespaces need Linux. Grade in a container instead: "
            'docker run --rm -it --privileged -v "$PWD":/course -w /course python:3.11 bash -c '
            "'apt-get update && apt-get install -y make gcc bubblewrap && tools/install.sh grading && bash'",
        )
    if missing := [tool for tool in ("bwrap", "setpriv", "prlimit") if shutil.which(tool) is None]:
        return Isolation(
            Level.NONE, f"{' and '.join(missing)} missing: sudo apt install bubblewrap util-linux, and try again"
        )
    try:
        import pyseccomp  # noqa: F401
    except (ImportError, RuntimeError) as error:  # RuntimeError: libseccomp itself is missing
        return Isolation(Level.NONE, f"system calls cannot be filtered ({error}): tools/install.sh grading")
    if os.geteuid() == 0:
        problem = _refused("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts")
        return Isolation(Level.NONE, _no_namespaces(problem)) if problem else Isolation(Level.FULL, "")
    if problem := _refused("--unshare-user", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"):
        return Isolation(Level.NONE, _no_namespaces(problem))
    return Isolation(
        Level.USER,
        "run as root for a user id per slot and a control group, which bounds the memory of all ranks together",
    )


def _refused(*namespaces: str) -> str:
    """What bubblewrap says when it cannot make them; "" when it can."""
    command = ["bwrap", *namespaces, "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    try:
        tried = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer within {PROBE_SECONDS} s"
    return "" if tried.returncode == 0 else tried.stderr.strip() or f"exit code {tried.returncode}"


def _no_namespaces(problem: str) -> str:
    return (
        f"this machine makes no namespaces ({problem}). Ubuntu 24.04 and newer: "
        "sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0; in a container: start it with --privileged; "
        "or run the grader as root"
    )
