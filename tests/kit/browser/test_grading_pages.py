"""What learners and instructors get from grading, in a real browser: nothing runs, nothing loads, nothing overflows."""

from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from shardlab.grade.course import Course
from shardlab.grade.gradebook.export import write_all
from shardlab.grade.gradebook.record import CaseRecord, RankRecord, Verdict
from shardlab.grade.gradebook.similarity import Lines, Pair
from shardlab.grade.gradebook.standing import Standing, Student, marks_of
from shardlab.grade.manifest import exercises
from shardlab.syllabus import ROOT

HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(1)>' + "\x1b[31m" + "no_place_to_break" * 60


@pytest.fixture
def pages(tmp_path: Path) -> list[Path]:
    """feedback/s1.html and class.html of a student with every verdict, whose every text is hostile."""
    course = Course(ROOT)
    declared = [*exercises(course, course.lessons["1.3"]).values(), *exercises(course, course.lessons["1.4"]).values()]
    ranks = tuple(RankRecord(rank, state, HOSTILE, HOSTILE, HOSTILE) for rank, state in enumerate(("hung", "killed")))
    verdicts = list(Verdict)
    records = [
        CaseRecord(
            exercise.lesson.id,
            exercise.name,
            f"tests/x.py::test_{exercise.name}[{HOSTILE}]",
            Fraction(exercise.points),
            verdicts[place % len(verdicts)],
            f"{HOSTILE}, expected {HOSTILE}: {HOSTILE}",
            1.0,
            cause=1,
            ranks=ranks,
        )
        for place, exercise in enumerate(declared)
    ]
    student = Student("s1", HOSTILE, HOSTILE)
    hostile = Standing(student, "ab" * 32, (HOSTILE,), marks_of(declared, records))
    refused = Standing(replace(student, id="s2"), None, (HOSTILE,), marks_of(declared, []))
    pair = Pair("s1", "s2", 0.9, 50, ((Lines(Path(HOSTILE), 1, 2), Lines(Path(HOSTILE), 3, 4)),))
    write_all([hostile, refused], tmp_path, isolation="full", date="today", pairs=[pair])
    return [tmp_path / "feedback" / "s1.html", tmp_path / "feedback" / "s2.html", tmp_path / "class.html"]


@pytest.mark.slow
def test_pages_stand_alone_and_fit_a_phone(page, pages):
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
    page.on("request", lambda request: asked.append(request.url))
    for file in pages:
        for width in (360, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            page.goto(file.as_uri())
            page.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= width, f"{file.name} is {wide} pixels wide on a screen of {width}"
            beyond = page.evaluate(
                "[...document.querySelectorAll('svg.ranks text')].filter(one => "
                "one.getBoundingClientRect().right > one.closest('svg').getBoundingClientRect().right + 1).length"
            )
            assert beyond == 0, f"{file.name}: {beyond} labels of a picture leave it on a screen of {width}"
    assert said == []
    assert {url.rpartition("/")[2] for url in asked} == {file.name for file in pages}
