"""The README's table of lessons, made from syllabus.toml and kept between two markers."""

from collections.abc import Iterator
from pathlib import Path

from shardlab.bad_input import BadInput
from shardlab.syllabus import Day, Lesson, read

BEGIN = "<!-- lessons: written by `make release` from syllabus.toml -->"
END = "<!-- /lessons -->"
LINKED = ("slides", "notebook", "lab", "tests", "script")  # the solution is for afterwards


def refresh_readme(root: Path) -> bool:
    """Writes the table into the README of the checkout at `root`; True when it changed."""
    readme = root / "README.md"
    fresh = _with_table(root)
    if readme.read_text(encoding="utf-8") == fresh:
        return False
    readme.write_text(fresh, encoding="utf-8")
    return True


def readme_is_fresh(root: Path) -> bool:
    return (root / "README.md").read_text(encoding="utf-8") == _with_table(root)


def _with_table(root: Path) -> str:
    before, begin, rest = (root / "README.md").read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise BadInput(f"README.md has lost its markers; put back `{BEGIN}` and `{END}` around the table of lessons.")
    table = "\n".join(_rows(read(root / "syllabus.toml"), root))
    return f"{before}{BEGIN}\n\n{table}\n\n{END}{after}"


def _rows(days: tuple[Day, ...], root: Path) -> Iterator[str]:
    yield "| | Lesson | Hours | Parts |"
    yield "|---|---|---:|---|"
    for day in days:
        hours = sum(lesson.hours for lesson in day.lessons)
        yield f"| **Day {day.number}** | **{day.title}** | **{hours:g}** | |"
        for lesson in day.lessons:
            yield f"| {lesson.id} | `{lesson.slug}`: {lesson.title} | {lesson.hours:g} | {_parts(lesson, root)} |"


def _parts(lesson: Lesson, root: Path) -> str:
    if not lesson.ready:
        return "planned"
    return " · ".join(f"[{name}]({lesson.parts[name].relative_to(root)})" for name in LINKED)
