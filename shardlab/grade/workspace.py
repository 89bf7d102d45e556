"""A submission laid over a copy of labs/, in a temporary folder of its own."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardlab.bad_input import BadInput
from shardlab.grade.course import Course

MAX_FILE_BYTES = 2**20  # 1 MiB; a lab is some 10 KiB
_LEFTOVERS = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")


class SubmissionError(BadInput):
    """A folder that cannot be graded: one sentence that says why and what was expected."""


@contextmanager
def workspace(root: Path, submission: Path) -> Iterator[Path]:
    """Folder with a ``labs/`` like that of the checkout at `root`, in which `submission`'s files replace their like.

    Only the labs of lessons are taken, which a learner writes: scripts, package files and anything else stay out.

    Raises:
        SubmissionError: `submission` is no folder, mirrors nothing, or holds a link or an oversized file.
    """
    files = submitted_files(root, submission)
    with tempfile.TemporaryDirectory(prefix="shardlab-") as folder:
        place = Path(folder).resolve()
        shutil.copytree(root / "labs", place / "labs", ignore=_LEFTOVERS)
        for file in files:
            shutil.copyfile(submission / file, place / "labs" / file)
        yield place


def submitted_files(root: Path, submission: Path) -> list[Path]:
    """The files of `submission` that count, relative to it."""
    if not submission.is_dir():
        problem = "is not a folder" if submission.exists() else "does not exist"
        raise SubmissionError(f'the submission "{submission}" {problem}: name a folder that mirrors labs/')
    writable = labs_to_write(root)
    files = [file for file in writable if os.path.lexists(submission / file)]
    if not files:
        wanted = f"it should hold {writable[0]}" if writable else "but labs/ itself holds no lab yet"
        inner = submission / "labs"
        hint = f'; did you mean "{inner}"?' if any((inner / file).is_file() for file in writable) else ""
        raise SubmissionError(f'the submission "{submission}" mirrors nothing of labs/: {wanted} or the like{hint}')
    for file in files:
        _check(submission, file)
    return files


def labs_to_write(root: Path) -> list[Path]:
    """The labs of all lessons, relative to labs/; scripts, package files and helpers there are given."""
    labs = (lesson.lab for lesson in Course(root).lessons.values())
    return [lab.relative_to(root / "labs") for lab in labs if lab.is_file()]


def _check(submission: Path, file: Path) -> None:
    for part in (file, *file.parents[:-1]):
        if (submission / part).is_symlink():
            raise SubmissionError(f'"{submission / part}" is a link: a submission holds the files themselves')
    path = submission / file
    if not path.is_file():
        raise SubmissionError(f'"{path}" is not a regular file')
    if (size := path.stat().st_size) > MAX_FILE_BYTES:
        raise SubmissionError(f'"{path}" has {size:,} bytes; a submitted file may have {MAX_FILE_BYTES:,}')
