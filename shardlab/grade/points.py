"""Points of exercises: how a run earned them, and the table of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING

from shardlab.grade.manifest import Exercise

if TYPE_CHECKING:
    from rich.table import Table

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


def table(scores: Iterable[Score]) -> "Table":
    """Rich table of `scores`, lesson by lesson, with the sum of all."""
    from rich.table import Table
    from rich.text import Text

    result = Table(title="Points", title_justify="left", show_footer=True)
    scores = list(scores)
    earned, points = sum(score.earned for score in scores), sum(score.exercise.points for score in scores)
    result.add_column("lesson", "all")
    result.add_column("exercise")
    result.add_column("points", f"{_decimal(earned)} of {points}", justify="right")
    result.add_column("")
    before = None
    for score in scores:
        lesson = score.exercise.lesson
        heading = f"{lesson.id} {lesson.slug}" if lesson != before else ""
        result.add_section() if heading and before else None
        before = lesson
        style = "green" if score.earned == score.exercise.points else "yellow" if score.earned else ""
        share = f"{_decimal(score.earned)} of {score.exercise.points}"
        result.add_row(heading, score.exercise.name, Text(share, style), score.remark)
    return result


def _decimal(points: Fraction) -> str:
    return f"{float(points):.2f}".rstrip("0").rstrip(".")
