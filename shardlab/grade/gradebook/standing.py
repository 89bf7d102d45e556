"""How one student stands: the records of all graded cases against the exercises there are.

Totals come from the course and not from what ran: a case that is missing earned nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

from shardlab.grade.gradebook.record import CaseRecord, Verdict
from shardlab.grade.manifest import Exercise


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

    @property
    def earned(self) -> Fraction:
        return sum((case.share for case in self.cases if case.verdict is Verdict.PASSED), Fraction(0))

    @property
    def points(self) -> int:
        return self.exercise.points

    @property
    def unsettled(self) -> bool:
        """A failure of ours stands in for a verdict: a person has to look before this counts."""
        return any(case.verdict is Verdict.INFRA for case in self.cases)


@dataclass(frozen=True)
class Standing:
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

    @property
    def earned(self) -> Fraction:
        return sum((mark.earned for mark in self.marks), Fraction(0))

    @property
    def points(self) -> int:
        return sum(mark.points for mark in self.marks)

    @property
    def unsettled(self) -> bool:
        return any(mark.unsettled for mark in self.marks)


def marks_of(exercises: Sequence[Exercise], records: Iterable[CaseRecord]) -> tuple[Mark, ...]:
    """A mark for each exercise; of several records of one test the last counts."""
    latest = {record.test: record for record in records}
    return tuple(
        Mark(
            exercise,
            tuple(
                record
                for record in latest.values()
                if (record.lesson, record.exercise) == (exercise.lesson.id, exercise.name)
            ),
        )
        for exercise in exercises
    )
