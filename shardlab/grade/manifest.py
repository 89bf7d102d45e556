"""The exercises of a lesson and what each is worth, read from the source of its tests.

Totals come from here and not from the tests that happened to run: whatever is left out, deselected or crashes counts
as not earned, and `shardlab status` knows every exercise before the first run.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import NoReturn

from shardlab.bad_input import BadInput
from shardlab.grade.course import Course
from shardlab.grade.source import definitions
from shardlab.syllabus import Lesson


@dataclass(frozen=True)
class Exercise:
    """What a learner writes and gets points for.

    Attributes:
        name: a function, class or ``Class.method`` of the lab.
        points: the sum over the tests that carry this exercise.
    """

    lesson: Lesson
    name: str
    points: int


class ManifestError(BadInput):
    """A mark in a lesson's tests that cannot be right: file, line and what to write instead."""


@cache
def exercises(course: Course, lesson: Lesson) -> dict[str, Exercise]:
    """Exercises of `lesson` by name, in the order its tests name them; empty while there are no tests.

    Raises:
        ManifestError: a mark is not literal, or names another lesson or nothing the solution defines.
    """
    if not lesson.tests.is_file():
        return {}
    points: dict[str, int] = {}
    writable = definitions(lesson.solution)
    for mark in _marks(ast.parse(lesson.tests.read_bytes())):
        place = f"{lesson.tests.relative_to(course.root)}:{mark.lineno}"
        lesson_id, name, worth = _literals(mark, place)
        if lesson_id != lesson.id:
            _refuse_lesson(course, lesson, lesson_id, place)
        if writable and name not in writable:
            near = get_close_matches(name, writable, n=1, cutoff=0)[0]
            raise ManifestError(f'{place}: the solution defines no "{name}"; did you mean "{near}"?')
        points[name] = points.get(name, 0) + worth
    return {name: Exercise(lesson, name, worth) for name, worth in points.items()}


def _marks(tree: ast.Module) -> Iterator[ast.Call]:
    """Calls of `exercise` that decorate a function, in the order of the file."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    for function in sorted(functions, key=lambda node: node.lineno):
        for decorator in function.decorator_list:
            match decorator:
                case ast.Call(func=ast.Name(id="exercise")):
                    yield decorator


def _literals(mark: ast.Call, place: str) -> tuple[str, str, int]:
    match mark:
        case ast.Call(
            args=[ast.Constant(value=str(lesson)), ast.Constant(value=str(name))],
            keywords=[ast.keyword(arg="points", value=ast.Constant(value=int(points)))],
        ):
            return lesson, name, points
    raise ManifestError(f'{place}: write the mark as literals, such as @exercise("1.3", "ring_all_reduce", points=4)')


def _refuse_lesson(course: Course, lesson: Lesson, given: str, place: str) -> NoReturn:
    if given in course.lessons:
        raise ManifestError(f"{place}: these are the tests of lesson {lesson.id} {lesson.slug}, not of {given}")
    near = course.nearest(given)
    raise ManifestError(f'{place}: there is no lesson "{given}"; did you mean {near.id} {near.slug}?')


def find(course: Course, lesson: Lesson, name: str) -> Exercise | None:
    """The exercise that `name` belongs to: itself, or for ``Class.method`` its class."""
    declared = exercises(course, lesson)
    return declared.get(name) or declared.get(name.partition(".")[0])


def lab_in(labs_root: Path, lesson: Lesson) -> Path:
    """The lesson's lab as it lies in `labs_root`: the checkout or a submission's workspace."""
    return labs_root / lesson.lab.relative_to(lesson.root)
