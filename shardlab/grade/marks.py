"""Exercise marks at collection: checked against the course, points split over the cases of a test."""

from collections.abc import Generator
from fractions import Fraction
from typing import Any

import pytest

from shardlab.grade.manifest import Exercise, ManifestError, exercises
from shardlab.grade.runs import COURSE

EXERCISE = pytest.StashKey[Exercise]()
CASE_PROPERTY = "shardlab_case"  # in a report's user_properties: what a case is worth, for whoever adds up the points


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "exercise(lesson, name, points): a graded test; see shardlab.grade.exercise")


@pytest.hookimpl(wrapper=True)
def pytest_pycollect_makeitem(collector: pytest.Collector) -> Generator[None, Any, Any]:
    found = yield
    cases = [item for item in found if isinstance(item, pytest.Function)] if isinstance(found, list) else []
    if cases and (mark := cases[0].get_closest_marker("exercise")):
        exercise = _exercise(collector, mark)
        for case in cases:
            case.stash[EXERCISE] = exercise
            case.user_properties.append((CASE_PROPERTY, _worth(exercise, Fraction(mark.kwargs["points"], len(cases)))))
    return found


def _exercise(collector: pytest.Collector, mark: pytest.Mark) -> Exercise:
    course = collector.config.stash[COURSE]
    lesson = course.lesson_of(collector.path)
    if lesson is None:
        raise collector.CollectError(
            f"{collector.path}: exercise marks belong in tests/DAY/test_TOPIC.py of a lesson in syllabus.toml"
        )
    try:
        declared = exercises(course, lesson)
    except ManifestError as error:
        raise collector.CollectError(str(error)) from None
    return declared[mark.kwargs["name"]]


def _worth(exercise: Exercise, share: Fraction) -> dict[str, str]:
    """Plain text, so that it survives the way from a worker of pytest-xdist and into a junit report."""
    return {"lesson": exercise.lesson.id, "exercise": exercise.name, "share": str(share)}
