"""Members of a git bundle, read out of its object store: nothing is checked out, no hook, filter or setting runs."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from shardlab.bad_input import BadInput
from shardlab.grade.intake.limited import run_limited
from shardlab.grade.intake.limits import Meter
from shardlab.grade.intake.members import Kind, Member, check_size, checked_name, shown
from shardlab.grade.workspace import SubmissionError

_PREFERRED = ("HEAD", "refs/heads/main", "refs/heads/master")
_HOW = "make it with `git bundle create FILE HEAD`"
_KINDS = {"120000": Kind.LINK, "160000": Kind.SUBMODULE}  # by mode; the rest are files
_CUT_SHORT = ("died of signal", "ut of memory", "unable to create thread", "mmap failed", "File too large")
_ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
}
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
        self._command = ["git", *(word for key, value in _SETTINGS.items() for word in ("-c", f"{key}={value}"))]

    def run(self, *arguments: str) -> bytes:
        """What git prints."""
        outcome = run_limited([*self._command, *arguments], self._place, _ENVIRONMENT)
        if outcome.code < 0 or any(cut in outcome.errors for cut in _CUT_SHORT):
            raise SubmissionError("the bundle takes more time or room to read than any honest one")
        if outcome.code:
            reason = next(iter(outcome.errors.strip().splitlines()), f"exit code {outcome.code}")
            raise SubmissionError(f"git cannot read the bundle ({shown(reason)}): {_HOW}")
        return outcome.printed


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
