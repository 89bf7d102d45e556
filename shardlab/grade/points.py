"""Points of exercises: how a run earned them, and the table of them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby

from shardlab.grade.gradebook.text import decimal
from shardlab.grade.manifest import Exercise
from shardlab.show import table

PASSED, FAILED, UNATTEMPTED, SKIPPED = "passed", "failed", "not attempted", "skipped"


@dataclass(frozen=True)
class Score:
    """Points earned for one exercise, and in words how it stands."""

    exercise: Exercise
    earned: Fraction
    remark: str


@dataclass
class Tally:
    """Cases of one exercise that a run has reported so far."""

    exercise: Exercise
    earned: Fraction = Fraction(0)
    reported: Fraction = Fraction(0)
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, outcome: str, share: Fraction) -> None:
        self.outcomes[outcome] += 1
        self.reported += share
        self.earned += share if outcome == PASSED else 0

    @property
    def complete(self) -> bool:
        """Every case of every test of the exercise was reported."""
        return self.reported == self.exercise.points

    def score(self) -> Score:
        return Score(self.exercise, self.earned, self._remark())

    def _remark(self) -> str:
        cases = self.outcomes.total()
        remarks = []
        if failed := self.outcomes[FAILED]:
            remarks.append(f"{failed} of {cases} tests failed")
        if self.outcomes[UNATTEMPTED]:
            remarks.append(where(self.exercise))
        if skipped := self.outcomes[SKIPPED]:
            remarks.append(f"{skipped} of {cases} tests need what this machine lacks")
        if not self.complete:
            remarks.append("not every test ran")
        return "; ".join(remarks) or "done"


def where(exercise: Exercise) -> str:
    """What to do about an exercise nobody has written yet."""
    return f"not attempted: open {exercise.lesson.lab.relative_to(exercise.lesson.root)}"


def print_table(scores: Sequence[Score]) -> None:
    """Print `scores`, lesson by lesson, and their sum."""
    rows = []
    for lesson, of_lesson in groupby(scores, lambda score: score.exercise.lesson):
        heading = f"{lesson.id} {lesson.slug}"
        for score in of_lesson:
            rows.append((heading, score.exercise.name, _of(score.earned, score.exercise.points), score.remark))
            heading = ""
    total = _of(sum(score.earned for score in scores), sum(score.exercise.points for score in scores))
    table("Points", ["lesson", "exercise", "points", ""], [*rows, ("all", "", total, "")])


def _of(earned: Fraction, points: int) -> str:
    return f"{decimal(earned)} of {points}"
