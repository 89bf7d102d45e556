"""The command line of bubblewrap: what a sandbox sees of this machine, and as whom."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from shardlab.grade.sandbox.limits import Limits

NAMESPACES = ("--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try")
SYSTEM_FOLDERS = ("/lib", "/lib64", "/bin", "/sbin")  # links into /usr on most systems, folders on others
ETC = {
    "passwd": "root:x:0:0::/:/usr/sbin/nologin\nlearner:x:{user}:{user}::/tmp:/usr/sbin/nologin\n",
    "group": "root:x:0:\nlearner:x:{user}:\n",
    "hosts": "127.0.0.1 localhost\n::1 localhost\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}


def write_etc(folder: Path, user: int) -> None:
    """The files that take the place of /etc."""
    for name, text in ETC.items():
        (folder / name).write_text(text.format(user=user))


def bubblewrap(
    *, etc: Path, shown: Iterable[Path], writable: Path, limits: Limits, filter_descriptor: int, user: int | None
) -> list[str]:
    """The command that runs its arguments in the sandbox.

    Args:
        etc: a folder from `write_etc`.
        shown: files and folders to read, at their own paths.
        writable: a folder to read and write, at its own path.
        user: become this user and group; None: stay the caller's, in a user namespace.
    """
    places = [*_interpreter(), *shown]
    arguments = ["bwrap", *NAMESPACES, "--die-with-parent", "--new-session", "--hostname", "sandbox"]
    arguments += ["--cap-drop", "ALL"]
    if user is None:
        arguments += ["--unshare-user", "--disable-userns"]
    else:
        for capability in ("CAP_SETUID", "CAP_SETGID", "CAP_SETPCAP"):  # for setpriv, which then drops them too
            arguments += ["--cap-add", capability]
    arguments += [*_system(), *_scratch(limits)]
    for file in (*(etc / name for name in ETC), Path("/etc/ld.so.cache")):
        arguments += ["--ro-bind-try", str(file), f"/etc/{file.name}"]
    arguments += _parents([*places, writable])
    for place in places:
        arguments += ["--ro-bind", str(place), str(place)]
    arguments += ["--bind", str(writable), str(writable), "--chdir", "/tmp", "--seccomp", str(filter_descriptor), "--"]
    return [*arguments, *([] if user is None else _become(user)), *limits.prlimit()]


def _system() -> list[str]:
    """Programs and libraries, /proc without a way to change the kernel's settings, and a /dev with next to nothing."""
    arguments = ["--ro-bind", "/usr", "/usr"]
    for name in SYSTEM_FOLDERS:
        folder = Path(name)
        if folder.is_symlink():
            arguments += ["--symlink", str(folder.readlink()), name]
        elif folder.is_dir():
            arguments += ["--ro-bind", name, name]
    return [*arguments, "--proc", "/proc", "--ro-bind", "/proc/sys", "/proc/sys", "--dev", "/dev"]


def _scratch(limits: Limits) -> list[str]:
    arguments = []
    for folder in ("/tmp", "/dev/shm"):
        arguments += ["--perms", "1777", "--size", str(limits.scratch_bytes), "--tmpfs", folder]
    return arguments


def _interpreter() -> list[Path]:
    """Where this Python and its packages are, where that is not under /usr anyway."""
    folders = {Path(sys.prefix), Path(sys.base_prefix)}
    return sorted(folder for folder in folders if not folder.is_relative_to("/usr"))


def _parents(places: Iterable[Path]) -> list[str]:
    """Make the folders above `places` passable: bubblewrap would make them for itself alone."""
    above = {parent for place in places for parent in place.parents if parent != Path("/")}
    made = {Path("/usr"), Path("/tmp"), Path("/dev"), Path("/proc"), Path("/dev/shm")}
    arguments = []
    for folder in sorted(above - made, key=lambda path: len(path.parts)):
        arguments += ["--perms", "0755", "--dir", str(folder)]
    return arguments


def _become(user: int) -> list[str]:
    """setpriv(1): a real user id with no privilege, and no way back to one."""
    ids = ["--reuid", str(user), "--regid", str(user), "--clear-groups"]
    return ["setpriv", *ids, "--inh-caps", "-all", "--bounding-set", "-all", "--no-new-privs"]


def environment() -> Mapping[str, str]:
    """All that the sandbox gets of one: nothing of the grader's."""
    return {
        "PATH": "/usr/bin:/bin",
        "HOME": "/tmp",
        "LANG": "C.UTF-8",
        "TMPDIR": "/tmp",
        "GLOO_SOCKET_IFNAME": "lo",
        "MPLBACKEND": "agg",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
