"""What `shardlab grade` prints."""

from __future__ import annotations

import sys
from pathlib import Path

from shardlab.bad_input import BadInput
from shardlab.grade.batch.grading import Outcome, Wish, grade_class
from shardlab.grade.gradebook.text import decimal
from shardlab.grade.sandbox.level import Level, isolation
from shardlab.grade.sandbox.self_test import escapes
from shardlab.show import table
from shardlab.syllabus import Lesson


def grade(
    submissions: Path,
    roster: Path,
    out: Path,
    lessons: tuple[Lesson, ...],
    jobs: int,
    seed_file: Path | None,
    only: str | None,
    again: bool,
) -> int:
    """Grade, print where everybody stands. Exit code 1: something is left for a person to look at."""
    outcome = grade_class(Wish(submissions, roster, out, lessons, jobs, seed_file, only, again))
    _show(outcome)
    print(f"Isolation: {outcome.isolation}. Open {out / 'class.html'}; marks are in {out / 'gradebook.csv'}.")
    for problem in outcome.problems:
        print(f"shardlab: {problem}", file=sys.stderr)
    return 1 if any(standing.unsettled for standing in outcome.standings) else 0


def _show(outcome: Outcome) -> None:
    rows = []
    for standing in outcome.standings:
        remark = "look at it: not all could be judged" if standing.unsettled else " ".join(standing.problems)
        points = f"{decimal(standing.earned)} of {standing.points}"
        rows.append((standing.student.id, standing.student.name, points, remark))
    table("Class", ["id", "name", "points", ""], rows)


def show_self_test() -> int:
    """Try every escape and print how it went. Exit code 1: one worked; BadInput where there is no sandbox."""
    found = isolation()
    if found.level is Level.NONE:
        raise BadInput(f"there is no sandbox on this machine: {found.reason}")
    ways = escapes(found.level)
    rows = [(name, f"open: {got}" if got else "barred") for name, got in ways.items()]
    table(f"Ways out of the sandbox (isolation: {found.level})", ["what a submission may try", ""], rows)
    if found.reason:
        print(f"For more: {found.reason}.")
    return 1 if any(ways.values()) else 0
