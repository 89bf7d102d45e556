"""The page a learner gets back: what is done, what failed and how, and what to do next."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from markupsafe import Markup

from shardlab.grade.gradebook.failures import Failure, failures_of, without_root
from shardlab.grade.gradebook.hints import hints
from shardlab.grade.gradebook.pages import render
from shardlab.grade.gradebook.rank_picture import rank_picture
from shardlab.grade.gradebook.record import Verdict
from shardlab.grade.gradebook.standing import Mark, Standing
from shardlab.grade.gradebook.text import plain
from shardlab.syllabus import Lesson

MOST_FAILURES = 3  # shown of one exercise
MOST_PICTURES = 1
STACK_CHARACTERS = 3000
NEXT_STEPS = 3


class State(StrEnum):
    """How one exercise stands."""

    DONE = "done"
    OPEN = "open"  # some of it fails
    UNSETTLED = "unsettled"
    UNTOUCHED = "untouched"


@dataclass(frozen=True)
class ExerciseView:
    """An exercise as the page shows it."""

    mark: Mark
    state: State
    passed: int  # cases
    failures: tuple[Failure, ...]
    hidden: int  # failures that are not shown
    hints: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.mark.exercise.name

    @property
    def lesson(self) -> Lesson:
        return self.mark.exercise.lesson

    @property
    def lab(self) -> str:
        return str(self.lesson.lab.relative_to(self.lesson.root))

    @property
    def line(self) -> str:
        """Where in the lab the first failure has its cause, if it is known."""
        for rank in self.failures[0].example.ranks if self.failures else ():
            file, _, number = rank.where.rpartition(":")
            if rank.rank == self.failures[0].example.cause and number.isdecimal() and self.lab.endswith(file) and file:
                return number
        return ""

    def pictures(self) -> dict[str, Markup]:
        """By test, for the first failures that have ranks to show."""
        drawn = {}
        for failure in self.failures:
            if failure.example.ranks and len(drawn) < MOST_PICTURES:
                drawn[f"{failure.test} {failure.verdict}"] = rank_picture(failure.example.ranks, failure.example.cause)
        return drawn


def feedback_page(standing: Standing) -> str:
    """HTML for one student."""
    views = [view_of(mark) for mark in standing.marks]
    lessons = [(lesson, list(group)) for lesson, group in groupby(views, lambda view: view.lesson)]
    return render(
        "feedback.html",
        standing=standing,
        lessons=list(zip(standing.lessons, (group for _, group in lessons), strict=True)),
        steps=next_steps(views),
        count=lambda group, state: sum(view.state == state for view in group),
        stack_of=stack_of,
        State=State,
    )


def view_of(mark: Mark) -> ExerciseView:
    failures = () if mark.complete else failures_of(mark)
    shown = failures[:MOST_FAILURES]
    ours = mark.complete or {failure.verdict for failure in failures} == {Verdict.INFRA}
    ladder = () if ours else hints(mark.exercise.lesson.lab, mark.exercise.name)
    passed = sum(case.verdict is Verdict.PASSED for case in mark.cases)
    return ExerciseView(mark, state_of(mark), passed, shown, len(failures) - len(shown), ladder)


def state_of(mark: Mark) -> State:
    if mark.unsettled:
        return State.UNSETTLED
    if mark.complete:
        return State.DONE
    untouched = all(case.verdict is Verdict.NOT_ATTEMPTED for case in mark.cases)
    return State.UNTOUCHED if untouched else State.OPEN


def next_steps(views: Iterable[ExerciseView]) -> list[ExerciseView]:
    """What to work on first: exercises that fail, then those not attempted, both in the course's order, because later
    ones use earlier ones."""
    to_do = [view for view in views if view.state in (State.OPEN, State.UNTOUCHED)]
    return sorted(to_do, key=lambda view: view.state is State.UNTOUCHED)[:NEXT_STEPS]


def stack_of(failure: Failure) -> dict[str, Any] | None:
    """What the causing rank was at, if its stack is known."""
    record = failure.example
    for rank in record.ranks:
        if rank.rank == record.cause and rank.stack.strip():
            return {"rank": rank.rank, "text": without_root(plain(rank.stack, STACK_CHARACTERS)).strip("\n")}
    return None
