"""For the kit's tests: the graded tests of a lesson, run on some submission inside this process."""

from collections.abc import Callable
from pathlib import Path

import pytest

from shardlab.syllabus import ROOT, Lesson

NOT_INSIDE = ("cacheprovider", "faulthandler", "nbval", "xdist")  # the outer run has them
COLLECTS_GARBAGE = ("unraisableexception", "threadexception")  # ten times at the end: half a second with torch loaded


@pytest.fixture
def grade_inside(tmp_path: Path) -> Callable[[Lesson, Path, object], int]:
    """Run a lesson's tests on a submission, watched by a plugin: pytest's exit code. The ranks' parent stays warm."""

    def grade(lesson: Lesson, submission: Path, plugin: object) -> int:
        without = [argument for name in (*NOT_INSIDE, *COLLECTS_GARBAGE) for argument in ("-p", f"no:{name}")]
        folders = [f"--rootdir={ROOT}", f"--submission={submission}", f"--basetemp={tmp_path / 'run'}"]
        return pytest.main([*without, *folders, str(lesson.tests)], plugins=[plugin])

    return grade
