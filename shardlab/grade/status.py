"""The learner's own progress, kept between runs, and runs of the graded tests for the command line."""

import json
import subprocess
import sys
from collections.abc import Iterable
from fractions import Fraction
from pathlib import Path

from shardlab.grade.course import Course
from shardlab.grade.manifest import Exercise, exercises
from shardlab.grade.points import Score, Tally
from shardlab.show import write_text
from shardlab.syllabus import ROOT, Lesson, lessons


def run_tests(lesson: Lesson | None = None, submission: Path | None = None) -> int:
    """Run the graded tests of `lesson`, or of all ready lessons, and show pytest's output with the table of points.

    Args:
        submission: folder that mirrors labs/; None grades labs/ itself and keeps the points for `scores`.

    Returns:
        pytest's exit code: 0 all right, 1 a test failed, 2 bad input or stopped by Ctrl-C.
    """
    chosen = [lesson] if lesson else lessons(ready=True)
    options = [f"--submission={submission.expanduser().absolute()}"] if submission else []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:nbval", *options, *(str(one.tests) for one in chosen)]
    run = subprocess.Popen(command, cwd=ROOT)
    while True:
        try:
            return run.wait()
        except KeyboardInterrupt:
            continue  # the terminal sent it to pytest too, which ends its ranks and says so


def scores(root: Path = ROOT) -> list[Score]:
    """How every exercise of every lesson that has tests stands since it was last run in full, in the course's order."""
    course, known = Course(root), _read(root)
    return [
        _score(exercise, known.get(lesson.id, {}).get(exercise.name))
        for lesson in course.lessons.values()
        for exercise in exercises(course, lesson).values()
    ]


def keep(root: Path, tallies: Iterable[Tally]) -> None:
    """Write what a run found to results/status.json; an exercise of which only some cases ran stays as it was.

    Raises:
        OSError: results/ cannot be written.
    """
    known = _read(root)
    for tally in tallies:
        if tally.complete:
            score, exercise = tally.score(), tally.exercise
            found = {"earned": str(score.earned), "points": exercise.points, "remark": score.remark}
            known.setdefault(exercise.lesson.id, {})[exercise.name] = found
    write_text(_file(root), json.dumps(known, indent=1) + "\n")


def _file(root: Path) -> Path:
    return root / "results" / "status.json"


def _read(root: Path) -> dict:
    """What was kept, by lesson; nothing of it where the file is missing or somebody has edited it."""
    try:
        known = json.loads(_file(root).read_text(encoding="utf-8"))
    except (FileNotFoundError, UnicodeDecodeError, json.JSONDecodeError):
        return {}
    found = known if isinstance(known, dict) else {}
    return {lesson: points for lesson, points in found.items() if isinstance(points, dict)}


def _score(exercise: Exercise, found: object) -> Score:
    match found:
        case {"earned": str(earned), "points": exercise.points, "remark": str(remark)}:
            return Score(exercise, Fraction(earned), remark)
    return Score(exercise, Fraction(0), "not run yet")
