"""Not attempted is not failed: a graded test or notebook cell that meets NotAttempted is skipped.

The report names the file to open and what is not earned. A notebook is skipped from that cell on: what follows builds
on it.
"""

import re
from collections.abc import Generator
from pathlib import Path

import pytest

from shardlab import NotAttempted
from shardlab.grade.manifest import exercises, find, lab_in
from shardlab.grade.marks import EXERCISE
from shardlab.grade.runs import COURSE, LABS_ROOT
from shardlab.grade.source import Definition, definitions

NOT_ATTEMPTED_PROPERTY = "shardlab_not_attempted"  # in a report's user_properties: "1.3 ring_all_reduce"
_STOPPED_AT = pytest.StashKey[str]()  # of a notebook: the exercise that the cells after it lack
_MESSAGE = re.compile(r"(?P<name>\S+) \(lesson (?P<lesson>\S+)\)")  # how NotAttempted prints itself


class Unattempted(pytest.skip.Exception):
    """The skip of an exercise nobody has written yet, reported at the exercise's own place."""

    def __init__(self, reason: str, file: Path, line: int) -> None:
        super().__init__(reason)
        self.file = file
        self.line = line


@pytest.hookimpl(wrapper=True, trylast=True)  # inside pytest's own wrappers, which must see the skip end the set-up
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    if exercise := item.stash.get(EXERCISE, None):
        lab = definitions(lab_in(item.config.stash[LABS_ROOT], exercise.lesson))
        if lab.get(exercise.name, Definition(0, untouched=False)).untouched:  # no ranks needed to find out
            raise _skip(item, f"{exercise.lesson.id} {exercise.name}")
    elif item.parent and (missing := item.parent.stash.get(_STOPPED_AT, None)):
        raise _skip(item, missing)
    yield from _skipping(item)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    yield from _skipping(item)


def _skipping(item: pytest.Item) -> Generator[None, None, None]:
    try:
        yield
    except NotAttempted as error:
        if "lab" not in getattr(item, "fixturenames", ()) or not _in_course(item, error.exercise):
            raise
        raise _skip(item, error.exercise) from None
    except Exception:
        if (missing := _missing_in_cell(item)) is None or not _in_course(item, missing):
            raise
        item.parent.stash[_STOPPED_AT] = missing
        raise _skip(item, missing) from None


def _missing_in_cell(item: pytest.Item) -> str | None:
    """The exercise that a notebook cell (nbval) stopped at: its kernel tells errors by name and message only."""
    outputs = getattr(item, "test_outputs", None)
    if not outputs or outputs[-1].get("ename") != NotAttempted.__name__:
        return None
    match = _MESSAGE.match(outputs[-1]["evalue"])
    return f"{match['lesson']} {match['name']}" if match else None


def _in_course(item: pytest.Item, missing: str) -> bool:
    return missing.partition(" ")[0] in item.config.stash[COURSE].lessons


def _skip(item: pytest.Item, missing: str) -> Unattempted:
    """The skip of `item`, which lacks the exercise `missing` ("1.3 ring_all_reduce")."""
    item.user_properties.append((NOT_ATTEMPTED_PROPERTY, missing))
    course, labs_root = item.config.stash[COURSE], item.config.stash[LABS_ROOT]
    lesson_id, _, name = missing.partition(" ")
    lesson = course.lessons[lesson_id]
    graded = item.stash.get(EXERCISE, None) or find(course, lesson, name)
    points = graded.points if graded else sum(exercise.points for exercise in exercises(course, lesson).values())
    file = lab_in(labs_root, lesson)
    shown = file.relative_to(labs_root)
    definition = definitions(file).get(name)
    return Unattempted(
        f"not attempted: open {shown} ({name}), 0 of {points} points", shown, definition.line if definition else 1
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo and isinstance(call.excinfo.value, Unattempted):
        skip = call.excinfo.value
        report.longrepr = (str(skip.file), skip.line, f"Skipped: {skip.msg}")
    return report
