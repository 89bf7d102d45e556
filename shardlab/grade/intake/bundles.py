"""Members of a git bundle, read out of its object store: nothing is checked out, no hook, filter or setting runs."""

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from shardlab.bad_input import BadInput
from shardlab.grade.intake.limits import (
    MAX_ARCHIVE_BYTES,
    MAX_GIT_CPU_SECONDS,
    MAX_GIT_MEMORY,
    MAX_GIT_SECONDS,
    Meter,
)
from shardlab.grade.intake.members import Kind, Member, check_size, checked_name, shown
from shardlab.grade.workspace import SubmissionError

_PREFERRED = ("HEAD", "refs/heads/main", "refs/heads/master")
_HOW = "make it with `git bundle create FILE HEAD`"
_KINDS = {"120000": Kind.LINK, "160000": Kind.SUBMODULE}  # by mode; the rest are files
_CUT_SHORT = ("died of signal", "ut of memory", "unable to create thread", "mmap failed", "File too large")
# macOS knows no limit on memory; there the others hold
_LIMITED = f"""
ulimit -t {MAX_GIT_CPU_SECONDS} && ulimit -c 0 && ulimit -f {2 * MAX_ARCHIVE_BYTES // 512} || exit 125
ulimit -v {MAX_GIT_MEMORY // 1024} 2>/dev/null
exec git "$@"
"""
_SETTINGS = {
    "core.hooksPath": os.devnull,
    "core.bigFileThreshold": "1m",  # larger blobs go through in pieces
    "core.fsmonitor": "false",
    "pack.threads": "1",
    "protocol.allow": "never",
    "gc.auto": "0",
    "transfer.unpackLimit": "1",  # one pack, not a file per object
}


def bundle_members(packed: bytes, is_wanted: Callable[[PurePosixPath], bool], meter: Meter) -> Iterator[Member]:
    """Everything in the tree of a bundle's HEAD, else of its only or main branch; the bytes of what is wanted.

    Raises:
        SubmissionError: it is broken, needs what it does not bring, costs too much or names nothing to look at.
    """
    if shutil.which("git") is None:
        raise BadInput("git is not installed, and one submission is a git bundle: install it, or grade where it is")
    with tempfile.TemporaryDirectory(prefix="shardlab-bundle-") as place:
        git = _Git(Path(place))
        (Path(place) / "submission.bundle").write_bytes(packed)
        git.run("init", "--quiet", "--bare", "--template=", "store")
        heads = git.run("--git-dir=store", "bundle", "unbundle", "submission.bundle").decode(errors="replace")
        for entry in _tree(git, _commit(heads)):
            meter.file()
            yield _member(git, entry, is_wanted, meter)


def _commit(heads: str) -> str:
    """The object to look at, from lines of one and its name each."""
    by_name = {name: commit for commit, _, name in (line.partition(" ") for line in heads.splitlines())}
    for name in _PREFERRED:
        if name in by_name:
            return by_name[name]
    if len(by_name) != 1:
        names = ", ".join(shown(name) for name in sorted(by_name)) or "none"
        raise SubmissionError(f"the bundle has no HEAD and no main branch (branches: {names}): {_HOW}")
    return next(iter(by_name.values()))


class _Git:
    """git in a folder of its own: without settings, hooks, prompts or network, and with limits."""

    def __init__(self, place: Path) -> None:
        self._place = place
        settings = [word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}")]
        self._command = ["sh", "-c", _LIMITED, "git", *settings]
        self._environment = {
            "PATH": os.environ.get("PATH", os.defpath),
            "HOME": str(place),
            "XDG_CONFIG_HOME": str(place),
            "LC_ALL": "C",
            "GIT_CONFIG_NOSYSTEM": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_ATTR_NOSYSTEM": "1",
            "GIT_TERMINAL_PROMPT": "0",
            "GIT_NO_LAZY_FETCH": "1",
            "GIT_NO_REPLACE_OBJECTS": "1",
        }

    def run(self, *arguments: str) -> bytes:
        """What git prints."""
        printed, said = self._place / "stdout", self._place / "stderr"
        with printed.open("wb") as out, said.open("wb") as error:
            process = subprocess.Popen(
                [*self._command, *arguments],
                cwd=self._place,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout=MAX_GIT_SECONDS)
            except BaseException as stopped:
                os.killpg(process.pid, signal.SIGKILL)  # and what it started; it was not waited for yet
                process.wait()
                if not isinstance(stopped, subprocess.TimeoutExpired):
                    raise
                code = -signal.SIGKILL
        sentences = said.read_bytes()[:4096].decode(errors="replace")
        if code < 0 or any(cut in sentences for cut in _CUT_SHORT):
            raise SubmissionError("the bundle takes more time or room to read than any honest one")
        if code:
            reason = next(iter(sentences.strip().splitlines()), f"exit code {code}")
            raise SubmissionError(f"git cannot read the bundle ({shown(reason)}): {_HOW}")
        return printed.read_bytes()


def _tree(git: _Git, commit: str) -> Iterator[tuple[str, str, str, str]]:
    """Mode, object, size and name of all that lies in a commit's tree, as git finds it."""
    for line in git.run("--git-dir=store", "ls-tree", "-r", "-z", "--long", commit).split(b"\0"):
        described, tab, name = line.partition(b"\t")
        if tab:
            mode, _, identity, size = described.decode().split()
            yield mode, identity, size, os.fsdecode(name)


def _member(
    git: _Git,
    entry: tuple[str, str, str, str],
    is_wanted: Callable[[PurePosixPath], bool],
    meter: Meter,
) -> Member:
    mode, identity, size, shown_name = entry
    name = checked_name(shown_name)
    if mode in _KINDS:
        return Member(name, _KINDS[mode])
    if not is_wanted(name):
        return Member(name, Kind.FILE)
    check_size(name, int(size))
    data = git.run("--git-dir=store", "cat-file", "blob", identity)
    meter.out(len(data))
    return Member(name, Kind.FILE, data)
