"""The page for the instructor: how the class did, which exercises are hard, and what a person has to look at."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from statistics import mean, median

from markupsafe import Markup

from shardlab.grade.gradebook.failures import WORDS, test_words
from shardlab.grade.gradebook.pages import render
from shardlab.grade.gradebook.record import CaseRecord, Verdict
from shardlab.grade.gradebook.similarity import Pair
from shardlab.grade.gradebook.standing import Mark, Standing, Student
from shardlab.grade.gradebook.text import percent
from shardlab.grade.manifest import Exercise

BINS = 10
MOST_ROWS = 200  # of what is to be looked at


@dataclass(frozen=True)
class ExerciseRow:
    """One exercise over all who handed in, those aside whose mark is not settled.

    Attributes:
        mean: points earned, in percent of those there are.
        full: share of students with all of them, in percent.
        verdicts: cases that did not pass, the most frequent verdict first.
        seconds: per student.
    """

    exercise: Exercise
    mean: float
    full: float
    verdicts: tuple[tuple[str, int], ...]
    seconds: float


@dataclass(frozen=True)
class Unsettled:
    """A case that we failed to judge."""

    student: Student
    case: CaseRecord
    test: str


def class_page(standings: Sequence[Standing], *, isolation: str, date: str, pairs: Sequence[Pair] = ()) -> str:
    """HTML for the instructor; `isolation` and `date` are shown as given."""
    handed_in = [standing for standing in standings if standing.submission is not None]
    settled = [percent(standing.earned, standing.points) for standing in handed_in if not standing.unsettled]
    unsettled = _unsettled(standings)
    return render(
        "class.html",
        standings=standings,
        handed_in=handed_in,
        settled=settled,
        mean=mean(settled) if settled else 0.0,
        median=median(settled) if settled else 0.0,
        histogram=histogram(settled),
        rows=exercise_rows(handed_in),
        seconds=sum(case.seconds for standing in standings for mark in standing.marks for case in mark.cases),
        unsettled=unsettled[:MOST_ROWS],
        unsettled_count=len(unsettled),
        problems=[standing for standing in standings if standing.problems],
        absent=[one.student for one in standings if one.submission is None and not one.problems],
        pairs=pairs,
        students={standing.student.id: standing.student for standing in standings},
        isolation=isolation,
        date=date,
    )


def exercise_rows(standings: Sequence[Standing]) -> list[ExerciseRow]:
    """One per exercise, the hardest first."""
    marks: dict[Exercise, list[Mark]] = {}
    for standing in standings:
        for mark in standing.marks:
            marks.setdefault(mark.exercise, []).append(mark)
    rows = [_row(exercise, of_exercise) for exercise, of_exercise in marks.items()]
    return sorted(rows, key=lambda row: (row.mean, row.full))


def _row(exercise: Exercise, marks: Sequence[Mark]) -> ExerciseRow:
    settled = [mark for mark in marks if not mark.unsettled]
    earned = sum((mark.earned for mark in settled), Fraction(0))
    verdicts = Counter(case.verdict for mark in marks for case in mark.cases if case.verdict is not Verdict.PASSED)
    return ExerciseRow(
        exercise,
        mean=percent(earned, exercise.points * len(settled)),
        full=percent(sum(mark.complete for mark in settled), len(settled)),
        verdicts=tuple((WORDS[verdict], count) for verdict, count in verdicts.most_common()),
        seconds=sum(case.seconds for mark in marks for case in mark.cases) / len(marks),
    )


def _unsettled(standings: Sequence[Standing]) -> list[Unsettled]:
    return [
        Unsettled(standing.student, case, ", case ".join(filter(None, test_words(case.test))))
        for standing in standings
        for mark in standing.marks
        for case in mark.cases
        if case.verdict is Verdict.INFRA
    ]


def histogram(percents: Sequence[float]) -> Markup:
    """SVG: how many students in each tenth of the points. It takes its colours from the page."""
    counts = Counter(min(BINS - 1, int(value * BINS // 100)) for value in percents)
    most = max(counts.values(), default=0) or 1
    step = 100 / BINS
    parts = ['<svg class="histogram" role="img" aria-label="Students by total" width="100%" height="210">']
    for place in range(BINS):
        count = counts[place]
        tall = 150 * count / most
        left, middle = step * place + 0.6, step * (place + 0.5)
        parts.append(
            f'<rect x="{left:.1f}%" y="{172 - tall:.1f}" width="{step - 1.2:.1f}%" height="{tall:.1f}" rx="3">'
            f"<title>{count} with {place * BINS} to {(place + 1) * BINS} %</title></rect>"
        )
        if count:
            parts.append(f'<text class="count" x="{middle:.1f}%" y="{164 - tall:.1f}">{count}</text>')
        parts.append(f'<text class="tick" x="{step * place:.1f}%" y="194">{place * BINS}</text>')
    parts.append('<text class="tick" x="100%" y="194" text-anchor="end">100 %</text>')
    parts.append('<line x1="0" x2="100%" y1="172.5" y2="172.5"/></svg>')
    return Markup("".join(parts))
