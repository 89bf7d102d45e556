"""One answer of the doctor, and how it words the commands that bring what is missing."""

import os
import shutil
import sys
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Finding:
    """What a check found out. `fix` is a command to copy; empty when there is nothing to do."""

    state: Literal["works", "limited", "missing"]
    found: str
    fix: str = ""


def works(found: str) -> Finding:
    return Finding("works", found)


def limited(found: str, fix: str = "") -> Finding:
    """There, but not as the course would like it."""
    return Finding("limited", found, fix)


def missing(found: str, fix: str = "") -> Finding:
    return Finding("missing", found, fix)


def sudo(command: str) -> str:
    """`command` as it must be typed by this user to run as root."""
    return command if os.geteuid() == 0 else f"sudo {command}"


def install(debian: str, fedora: str | None = None, homebrew: str | None = None) -> str:
    """The command that installs a system package here; each argument is its name for one package manager."""
    if shutil.which("apt-get"):
        return f"{sudo('apt-get update')} && {sudo(f'apt-get install -y {debian}')}"
    if shutil.which("dnf"):
        return sudo(f"dnf install -y {fedora or debian}")
    if shutil.which("brew") and homebrew:
        return f"brew install {homebrew}"
    return f"install {debian} with your package manager"


def pip_install(what: str) -> str:
    """The command that installs Python packages into the environment this process runs in."""
    return f"{sys.executable} -m pip install {what}"
