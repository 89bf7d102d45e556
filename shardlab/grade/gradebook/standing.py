"""How one student stands: the records of all graded cases against the exercises there are.

Totals come from the course and not from what ran: a case that is missing earned nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import groupby

from shardlab.grade.gradebook.record import CaseRecord, Verdict
from shardlab.grade.manifest import Exercise
from shardlab.syllabus import Lesson


@dataclass(frozen=True)
class Student:
    """A line of the roster.

    Attributes:
        id: what the school calls the student by; unique, and the name of files and folders.
        name: as people write it.
        email: or "".
    """

    id: str
    name: str
    email: str


@dataclass(frozen=True)
class Mark:
    """One student's cases of one exercise."""

    exercise: Exercise
    cases: tuple[CaseRecord, ...]

    @cached_property
    def earned(self) -> Fraction:
        return sum((case.share for case in self.cases if case.verdict is Verdict.PASSED), Fraction(0))

    @property
    def points(self) -> int:
        return self.exercise.points

    @property
    def complete(self) -> bool:
        return self.earned == self.points

    @cached_property
    def unsettled(self) -> bool:
        """A failure of ours stands in for a verdict: a person has to look before this counts."""
        return any(case.verdict is Verdict.INFRA for case in self.cases)


class Sum:
    """What several marks come to."""

    marks: tuple[Mark, ...]

    @cached_property
    def earned(self) -> Fraction:
        return sum((mark.earned for mark in self.marks), Fraction(0))

    @cached_property
    def points(self) -> int:
        return sum(mark.points for mark in self.marks)

    @cached_property
    def unsettled(self) -> bool:
        return any(mark.unsettled for mark in self.marks)


@dataclass(frozen=True)
class LessonMark(Sum):
    """One student's marks of one lesson."""

    lesson: Lesson
    marks: tuple[Mark, ...]


@dataclass(frozen=True)
class Standing(Sum):
    """One student's marks.

    Attributes:
        submission: SHA-256 of the files that were graded; None: nothing was handed in, or it was refused.
        problems: what intake had to say: why it was refused, or which files were left out.
        marks: one per exercise of the lessons that were graded, in the order of the course.
    """

    student: Student
    submission: str | None
    problems: tuple[str, ...]
    marks: tuple[Mark, ...]

    @cached_property
    def lessons(self) -> tuple[LessonMark, ...]:
        """The same marks, lesson by lesson."""
        by_lesson = groupby(self.marks, lambda mark: mark.exercise.lesson)
        return tuple(LessonMark(lesson, tuple(marks)) for lesson, marks in by_lesson)


def marks_of(exercises: Sequence[Exercise], records: Iterable[CaseRecord]) -> tuple[Mark, ...]:
    """A mark for each exercise; of several records of one test the last counts."""
    cases: dict[tuple[str, str], list[CaseRecord]] = {}
    for record in {record.test: record for record in records}.values():
        cases.setdefault((record.lesson, record.exercise), []).append(record)
    return tuple(Mark(exercise, tuple(cases.get((exercise.lesson.id, exercise.name), ()))) for exercise in exercises)
