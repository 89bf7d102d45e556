"""Which cases there are to judge, before any is: what is missing from a student's records was not judged."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from fractions import Fraction
from io import StringIO
from multiprocessing.context import BaseContext
from pathlib import Path

import pytest

from shardlab.bad_input import BadInput
from shardlab.grade.batch.judge import PLUGINS_LEFT_OUT
from shardlab.grade.gradebook.record import CaseRecord, Verdict
from shardlab.grade.marks import CASE_PROPERTY, EXERCISE
from shardlab.syllabus import ROOT, Lesson


@dataclass(frozen=True)
class Entry:
    """A case of a graded test: its node id, and what it is worth."""

    test: str
    lesson: str
    exercise: str
    share: Fraction

    def unjudged(self, why: str) -> CaseRecord:
        """The record of a case that could not be judged."""
        return CaseRecord(self.lesson, self.exercise, self.test, self.share, Verdict.INFRA, why, 0.0)


def catalogue(lessons: Sequence[Lesson], context: BaseContext) -> list[Entry]:
    """All graded cases of `lessons`, in the order they are judged.

    Args:
        context: of multiprocessing. Tests are imported in a process of their own, which is gone afterwards.

    Raises:
        BadInput: a lesson's tests cannot be collected.
    """
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(_collect, [lesson.tests for lesson in lessons]).result()


def _collect(files: Sequence[Path]) -> list[Entry]:
    entries: list[Entry] = []

    class Collector:
        def pytest_collection_finish(self, session: pytest.Session) -> None:
            entries.extend(_entry(item) for item in session.items if EXERCISE in item.stash)

    without = [argument for name in PLUGINS_LEFT_OUT for argument in ("-p", f"no:{name}")]
    said = StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        options = ["--collect-only", "-q", f"--rootdir={ROOT}"]
        code = pytest.main([*without, *options, *map(str, files)], plugins=[Collector()])
    if code != pytest.ExitCode.OK:
        raise BadInput(f"the graded tests cannot be collected: {said.getvalue().strip()[-2000:]}")
    return entries


def _entry(item: pytest.Item) -> Entry:
    worth = dict(item.user_properties)[CASE_PROPERTY]
    return Entry(item.nodeid, worth["lesson"], worth["exercise"], Fraction(worth["share"]))
