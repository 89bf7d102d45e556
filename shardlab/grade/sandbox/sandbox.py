"""`open_sandbox`: from a workspace to an enclosure that a pool of ranks can live in."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shardlab.grade.sandbox.command import bubblewrap, environment, write_etc
from shardlab.grade.sandbox.control_group import ControlGroup
from shardlab.grade.sandbox.level import Level
from shardlab.grade.sandbox.limits import Limits
from shardlab.grade.sandbox.slot import own_slot
from shardlab.grade.sandbox.system_calls import filter_file
from shardlab.ranks.enclosure import Enclosure
from shardlab.syllabus import ROOT


@dataclass(frozen=True)
class Sandbox:
    """One submission's.

    Attributes:
        enclosure: for `shardlab.ranks.RankPool`.
        group: bounds its memory; None at level user.
    """

    enclosure: Enclosure
    group: ControlGroup | None


@contextlib.contextmanager
def open_sandbox(level: Level, workspace: Path, limits: Limits | None = None) -> Iterator[Sandbox]:
    """A sandbox that sees this Python, the kit, the drivers of the tests, and `workspace` with the labs.

    What it does not see: solutions, tests and what they expect, other submissions, the grader's files, processes,
    network and environment.

    Args:
        level: full or user, as `isolation` found.
        workspace: holds labs/; its files can be read by all.
    """
    limits = limits or Limits()
    with contextlib.ExitStack() as stack:
        user = stack.enter_context(own_slot()) if level is Level.FULL else None
        group = _control_group(stack, limits) if level is Level.FULL else None
        own = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardlab-sandbox-"))).resolve()
        own.chmod(0o711)
        calls, etc = own / "calls", own / "etc"
        for folder in (calls, etc):
            folder.mkdir(mode=0o711)
        write_etc(etc, os.getuid() if user is None else user)
        system_calls = stack.enter_context(filter_file())
        stack.callback(shutil.rmtree, calls, ignore_errors=True)  # ranks may have made folders nobody can enter
        inside = bubblewrap(
            etc=etc,
            shown=[ROOT / "shardlab", *_drivers(), *_caches(), workspace],
            writable=calls,
            limits=limits,
            filter_descriptor=system_calls.fileno(),
            user=user,
        )
        yield Sandbox(
            Enclosure(
                enter=(*(group.enter() if group else ()), *inside),
                descriptors=(system_calls.fileno(),),
                calls=calls,
                owner=None if user is None else (user, user),
                environment=environment(),
                path=(),
                working_folder="/tmp",
            ),
            group,
        )


def _control_group(stack: contextlib.ExitStack, limits: Limits) -> ControlGroup:
    group = ControlGroup(limits)
    stack.callback(group.remove)
    return group


def _drivers() -> list[Path]:
    """What the graded tests run beside the learner's code. The tests themselves know the answers, and stay outside."""
    return sorted(ROOT.glob("tests/day*/drivers_*.py"))


def _caches() -> list[Path]:
    """The tokenizer and texts that were made once; there is no network to fetch them from."""
    return [folder for folder in [ROOT / ".cache" / "shardlab"] if folder.is_dir()]
