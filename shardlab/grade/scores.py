"""Adds up the points of a run from its reports, so that it works the same under pytest-xdist, and shows them."""

import io
from collections.abc import Iterator
from contextlib import redirect_stdout
from fractions import Fraction

import pytest

from shardlab.grade import status
from shardlab.grade.course import Course
from shardlab.grade.manifest import Exercise, exercises, lab_in
from shardlab.grade.marks import CASE_PROPERTY
from shardlab.grade.points import FAILED, PASSED, SKIPPED, UNATTEMPTED, Score, Tally, print_table, where
from shardlab.grade.runs import COURSE, LABS_ROOT, submission_folder
from shardlab.grade.skips import NOT_ATTEMPTED_PROPERTY
from shardlab.grade.source import definitions
from shardlab.syllabus import Lesson


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers of pytest-xdist send their reports to the process that has this
        config.pluginmanager.register(_Points(config), "shardlab-points")


class _Points:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._course: Course = config.stash[COURSE]
        self._worth: dict[str, dict[str, str]] = {}  # by test id
        self._outcomes: dict[str, str] = {}  # by test id
        self._stopped_notebooks: set[Lesson] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        missing = properties.get(NOT_ATTEMPTED_PROPERTY)
        if CASE_PROPERTY in properties:
            self._worth[report.nodeid] = properties[CASE_PROPERTY]
            if outcome := _outcome(report, missing is not None):
                self._outcomes[report.nodeid] = outcome
        elif missing:
            self._stopped_notebooks.add(self._course.lessons[missing.partition(" ")[0]])

    def pytest_sessionfinish(self) -> None:
        if submission_folder(self._config) is None and self._outcomes:
            try:
                status.keep(self._course.root, self._tallies())
            except OSError as error:
                self._config.issue_config_time_warning(pytest.PytestWarning(f"points are not kept: {error}"), 2)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        scores = [tally.score() for tally in self._tallies()]
        untested = self._stopped_notebooks - {score.exercise.lesson for score in scores}
        for lesson in self._course.lessons.values():
            scores += self._unwritten(lesson) if lesson in untested else ()
        if scores:
            with redirect_stdout(io.StringIO()) as printed:
                print_table(scores)
            terminalreporter.write(f"\n{printed.getvalue()}")

    def _tallies(self) -> list[Tally]:
        """What was reported of each exercise, in the order of the course."""
        tallies: dict[tuple[str, str], Tally] = {}
        for lesson in self._course.lessons.values():
            if any(worth["lesson"] == lesson.id for worth in self._worth.values()):
                tallies |= {(lesson.id, name): Tally(exercise) for name, exercise in self._declared(lesson).items()}
        for test, outcome in self._outcomes.items():
            worth = self._worth[test]
            tallies[worth["lesson"], worth["exercise"]].add(outcome, Fraction(worth["share"]))
        return [tally for tally in tallies.values() if tally.outcomes]

    def _unwritten(self, lesson: Lesson) -> Iterator[Score]:
        """The lesson's exercises that still raise NotAttempted: what a notebook that stopped has left to write."""
        lab = definitions(lab_in(self._config.stash[LABS_ROOT], lesson))
        untouched = {part for name, found in lab.items() if found.untouched for part in (name, name.partition(".")[0])}
        for name, exercise in self._declared(lesson).items():
            if name in untouched:
                yield Score(exercise, Fraction(0), where(exercise))

    def _declared(self, lesson: Lesson) -> dict[str, Exercise]:
        return exercises(self._course, lesson)


def _outcome(report: pytest.TestReport, unattempted: bool) -> str | None:
    """How a case ended; None while nothing has been decided."""
    if report.failed:
        return FAILED
    if report.skipped:
        return UNATTEMPTED if unattempted else SKIPPED
    return PASSED if report.when == "call" else None
