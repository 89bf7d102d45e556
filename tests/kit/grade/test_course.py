"""The lessons of this checkout under their own tests: labs nobody has touched get nothing, and nothing fails."""

from pathlib import Path

import pytest

from shardlab.grade.marks import CASE_PROPERTY
from shardlab.grade.release import lab_text
from shardlab.grade.skips import NOT_ATTEMPTED_PROPERTY
from shardlab.syllabus import lessons


class Outcomes:
    """A plugin that remembers the tests of one run that failed, and the graded ones that were not skipped."""

    def __init__(self) -> None:
        self.graded = 0
        self.attempted: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        properties = dict(report.user_properties)
        graded = CASE_PROPERTY in properties
        self.graded += report.when == "setup" and graded
        if report.failed or (report.when == "call" and graded and NOT_ATTEMPTED_PROPERTY not in properties):
            self.attempted.append(report.nodeid)


@pytest.mark.slow
@pytest.mark.parametrize("lesson", lessons(ready=True), ids=lambda lesson: lesson.slug)
def test_an_untouched_lab_earns_nothing_and_fails_nothing(lesson, grade_inside, tmp_path: Path) -> None:
    lab = tmp_path / "submission" / lesson.day / f"{lesson.slug}.py"
    lab.parent.mkdir(parents=True)
    lab.write_text(lab_text(lesson.solution.read_text(), lesson, lesson.solution))
    outcomes = Outcomes()
    assert grade_inside(lesson, tmp_path / "submission", outcomes) == 0
    assert outcomes.graded > 0
    assert outcomes.attempted == []
