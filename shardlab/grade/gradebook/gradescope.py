"""Marks as Gradescope's results.json, for an autograder that only hands on what was graded here.

Source: Gradescope, "Autograder Specifications" (gradescope-autograders.readthedocs.io/en/latest/specs).
"""

from shardlab.grade.gradebook.failures import WORDS, failures_of
from shardlab.grade.gradebook.record import Verdict
from shardlab.grade.gradebook.standing import Mark, Standing
from shardlab.grade.gradebook.text import one_line, plain

TEST_CHARACTERS = 2000  # of a message, per failure
PUBLISHED, HIDDEN = "after_published", "hidden"


def results_json(standing: Standing) -> dict:
    """Score, and a test per exercise, shown when the instructor publishes the grades.

    With a case that we failed to judge nothing is shown, the total neither: Gradescope has no mark that is open.
    """
    visibility = HIDDEN if standing.unsettled else PUBLISHED
    return {
        "score": round(float(standing.earned), 2),
        "execution_time": round(sum((case.seconds for mark in standing.marks for case in mark.cases), 0.0), 2),
        "output": "\n".join(_overall(standing)),
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": visibility,
        "stdout_visibility": HIDDEN,
        "tests": [_test(mark, str(place), visibility) for place, mark in enumerate(standing.marks, start=1)],
        "extra_data": {"submission": standing.submission, "unsettled": standing.unsettled},
    }


def _overall(standing: Standing) -> list[str]:
    lines = [one_line(problem) for problem in standing.problems]
    if standing.submission is None:
        lines.insert(0, "Nothing was graded.")
    if standing.unsettled:
        lines.append("The grading machine failed in some tests; a person has to look before these marks count.")
    return lines


def _test(mark: Mark, number: str, visibility: str) -> dict:
    return {
        "name": f"{mark.exercise.lesson.id} {mark.exercise.name}",
        "number": number,
        "score": round(float(mark.earned), 2),
        "max_score": float(mark.points),
        "status": "passed" if mark.complete else "failed",
        "output": _output(mark),
        "output_format": "text",
        "visibility": visibility,
    }


def _output(mark: Mark) -> str:
    if mark.complete:
        return "All tests passed."
    parts = [
        f"{failure.test} ({_cases(failure.cases)}): {failure.words}\n{plain(failure.message, TEST_CHARACTERS)}".rstrip()
        for failure in failures_of(mark)
    ]
    if any(case.verdict is Verdict.NOT_ATTEMPTED for case in mark.cases):
        parts.append(f"{WORDS[Verdict.NOT_ATTEMPTED]}: open {mark.exercise.lesson.lab.name}")
    return "\n\n".join(parts) or "No test of this exercise ran."


def _cases(cases: tuple[str, ...]) -> str:
    named = [case for case in cases if case]
    return ", ".join(named) if named else "1 case"
