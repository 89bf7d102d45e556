"""The course as data: eight days and 37 lessons, read from `syllabus.toml`.

    from shardlab.syllabus import days, lesson, lessons

    lesson("1.3").notebook      # .../notebooks/day1_one_gpu_to_many/3_collectives.ipynb
    lesson("collectives").id    # "1.3"

Everything that lists lessons (README table, command line, slides, checks) asks here, so a lesson is named once.
"""

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path

from shardlab.bad_input import BadInput

ROOT = Path(__file__).resolve().parents[1]
STATUSES = ("ready", "planned")


class UnknownLesson(BadInput, LookupError):
    """No lesson has this id or slug; the message suggests the nearest one."""


@dataclass(frozen=True)
class Lesson:
    """One lesson. Its six parts are found from its day's folder, its number in the day and its slug."""

    id: str  # "1.3"
    slug: str  # "collectives"
    title: str
    hours: float
    status: str  # one of STATUSES
    day: str  # "day1_one_gpu_to_many"
    extras: tuple[str, ...] = ()  # tracks: each is a requirements-<track>.txt
    root: Path = ROOT

    @property
    def number(self) -> int:
        """Place of the lesson in its day, counted from 1."""
        return int(self.id.split(".")[1])

    @property
    def ready(self) -> bool:
        return self.status == "ready"

    @property
    def lab(self) -> Path:
        return self.root / "labs" / self.day / f"{self.slug}.py"

    @property
    def solution(self) -> Path:
        return self.root / "solutions" / self.day / f"{self.slug}.py"

    @property
    def script(self) -> Path:
        return self.root / "labs" / self.day / f"run_{self.slug}.py"

    @property
    def notebook(self) -> Path:
        return self.root / "notebooks" / self.day / f"{self.number}_{self.slug}.ipynb"

    @property
    def tests(self) -> Path:
        return self.root / "tests" / self.day / f"test_{self.slug}.py"

    @property
    def slides(self) -> Path:
        return self.root / "slides" / self.day / f"{self.number}_{self.slug}.md"

    @property
    def parts(self) -> Mapping[str, Path]:
        """The six parts by name, in the order a learner meets them."""
        names = ("slides", "notebook", "lab", "tests", "script", "solution")
        return {name: getattr(self, name) for name in names}

    @property
    def requirements(self) -> tuple[Path, ...]:
        """The requirements files of its extras."""
        return tuple(self.root / f"requirements-{track}.txt" for track in self.extras)


@dataclass(frozen=True)
class Day:
    """One day of the course; `slug` names its folder under labs/, solutions/, notebooks/, slides/ and tests/."""

    slug: str
    title: str
    lessons: tuple[Lesson, ...]

    @property
    def number(self) -> int:
        return int(self.slug.removeprefix("day").split("_")[0])


def read(path: Path) -> tuple[Day, ...]:
    """Days in `path`, a syllabus.toml; the lessons' parts lie beside it. ValueError says which entry is malformed."""
    document = tomllib.loads(path.read_text(encoding="utf-8"))
    return tuple(_day(entry, path.parent) for entry in document["day"])


def _day(entry: dict, root: Path) -> Day:
    lessons = tuple(_lesson(lesson, entry["slug"], root) for lesson in entry["lesson"])
    day = Day(entry["slug"], entry["title"], lessons)
    expected = [f"{day.number}.{place}" for place in range(1, len(lessons) + 1)]
    found = [lesson.id for lesson in lessons]
    if found != expected:
        raise ValueError(f"{day.slug}: lessons are numbered {found}, expected {expected}")
    return day


def _lesson(entry: dict, day: str, root: Path) -> Lesson:
    if entry["status"] not in STATUSES:
        raise ValueError(f'lesson {entry["id"]}: status is "{entry["status"]}", must be one of {STATUSES}')
    return Lesson(**{**entry, "extras": tuple(entry.get("extras", ()))}, day=day, root=root)


@cache
def days() -> tuple[Day, ...]:
    """All days of this checkout, in order."""
    return read(ROOT / "syllabus.toml")


def lessons(*, ready: bool | None = None) -> tuple[Lesson, ...]:
    """All lessons in order; with `ready` given, only those that are (True) or are not yet (False)."""
    every = (lesson for day in days() for lesson in day.lessons)
    return tuple(lesson for lesson in every if ready is None or lesson.ready == ready)


def lesson(name: str) -> Lesson:
    """The lesson with this id ("1.3") or slug ("collectives"). UnknownLesson suggests the nearest."""
    for candidate in lessons():
        if name in (candidate.id, candidate.slug):
            return candidate
    near = _nearest(name)
    raise UnknownLesson(f'no lesson "{name}"; did you mean {near.id} {near.slug}?')


def _nearest(name: str) -> Lesson:
    """The lesson whose id or slug looks most like `name`; of several, the one with the nearest number."""

    def likeness(candidate: Lesson) -> tuple[float, float]:
        alike = max(SequenceMatcher(None, name.lower(), known).ratio() for known in (candidate.id, candidate.slug))
        return alike, -abs(float(candidate.id) - number)

    number = float(name) if re.fullmatch(r"\d+(\.\d+)?", name) else 0.0
    return max(lessons(), key=likeness)
