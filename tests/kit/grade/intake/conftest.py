"""A course of three labs, and submissions taken in under bounds on time and memory."""

import resource
import stat
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from small_course import PRODUCTS, SPLITS, SUMS, SYLLABUS

from shardlab.grade.intake import Submission, take_in

CPU_SECONDS = 30  # measured: below 2 each; a machine may be slow, an attack that works takes minutes
MEMORY_BYTES = 200 * 2**20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A checkout of that course."""
    root = tmp_path / "course"
    for name in ("__init__.py", "day1_small/__init__.py", "day1_small/run_sums.py", SUMS, PRODUCTS, SPLITS):
        file = root / "labs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("")
    (root / "syllabus.toml").write_text(SYLLABUS)
    return root


@contextmanager
def bounded() -> Iterator[None]:
    """What runs inside takes little time and memory, its children too."""
    began = _cpu_seconds()
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert _cpu_seconds() - began < CPU_SECONDS
    assert peak < MEMORY_BYTES


def _cpu_seconds() -> float:
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


@pytest.fixture
def take(root: Path, tmp_path: Path) -> Callable[[Path], Submission]:
    """Take a submission in: what comes out holds labs and nothing else, and nothing is written beside it."""

    def take(source: Path) -> Submission:
        into = tmp_path / f"clean {source.name}"
        before = _seen(tmp_path)
        with bounded():
            submission = take_in(source, "s1", into, root)
        written = _seen(tmp_path) - before
        if submission.folder is None:
            assert not written
            assert (submission.files, submission.sha256) == ((), None)
            assert len(submission.problems) == 1
            return submission
        assert submission.folder == into
        labs = {into / file for file in submission.files}
        assert labs
        assert written == {into, *labs, *(lab.parent for lab in labs)}
        for lab in labs:
            mode = lab.lstat().st_mode
            assert stat.S_ISREG(mode)
            assert not mode & 0o7111  # no setuid bit, not executable
        assert {file.as_posix() for file in submission.files} <= {SUMS, PRODUCTS, SPLITS}
        return submission

    return take


@pytest.fixture
def refused(take: Callable[[Path], Submission]) -> Callable[[Path], str]:
    """Take in a submission that must be refused: the sentence."""

    def refused(source: Path) -> str:
        submission = take(source)
        assert submission.folder is None, submission.files
        return submission.problems[0]

    return refused


def _seen(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))
