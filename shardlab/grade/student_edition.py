"""The course as students get it: a folder without solutions, without the kit's own tests and without git.

What is taken is named here, so that nothing else in a teacher's checkout (grades, submissions, notes) gets out. Labs
are written anew from the solutions, whatever has become of those in the checkout. Notebooks keep the outputs of the
reference solutions: numbers and pictures to compare one's own with, never the code that made them. Of a lesson that
is only planned nothing is taken but its lab, which other labs may import.

There are no hidden tests to take out: an instructor grades the same tests on inputs of a secret seed.
"""

import re
import shutil
import tomllib
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

from shardlab.bad_input import BadInput
from shardlab.grade.course import Course
from shardlab.grade.release import lab_text
from shardlab.show import write_text
from shardlab.syllabus import Lesson

_FILES = ("README.md", "LICENSE*", "Makefile", ".gitignore", "pyproject.toml", "requirements*.txt", "syllabus.toml")
_FOLDERS = ("labs", "notebooks", "shardlab", "slides", "tests", "tools")
_LEFT_OUT = ("requirements-browser.txt", "tests/kit")  # the first is for the second
_BENCHMARK = re.compile(r"^python (-m )?benchmarks\b.*\n", re.MULTILINE)  # a command that needs the solutions
_COURSE_ONLY = re.compile(r"\n*<!-- course only -->\n.*?\n<!-- /course only -->", re.DOTALL)
_EDITS = Path(__file__).with_suffix(".toml")


def write_student_edition(root: Path, into: Path) -> list[str]:
    """Copy the course at `root` to `into`, which must be empty or new, as students get it.

    Returns:
        What was written, a line for each part of it.

    Raises:
        BadInput: `into` holds something, `root` has no solutions, or a text that reads differently for students was
            changed and its edit was not.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise BadInput(f'"{into}" is not an empty folder: name a new one, so that nothing of yours is overwritten')
    refuse_without_solutions(root)
    course = Course(root)
    texts = _edited(root) | {
        lesson.lab.relative_to(root): lab_text(lesson.solution.read_text(encoding="utf-8"), lesson, lesson.solution)
        for lesson in course.lessons.values()
        if lesson.solution.is_file() and lesson.lab.is_file()
    }
    files = [file for file in _files(root) if file in texts or not _is_planned(course, file)]
    for file in files:
        (into / file).parent.mkdir(parents=True, exist_ok=True)
        if file in texts:
            write_text(into / file, texts[file])
        else:
            shutil.copy(root / file, into / file)
    counts = Counter(file.parts[0] if len(file.parts) > 1 else "beside them" for file in files)
    return [f"{part}: {count} files" for part, count in sorted(counts.items())]


def refuse_without_solutions(root: Path) -> None:
    """BadInput where the checkout is a student edition already."""
    if not (root / "solutions").is_dir():
        raise BadInput("there is no solutions/ here, as in every student edition: run this in the full course")


def _files(root: Path) -> Iterator[Path]:
    """What may be taken, relative to `root`, sorted; no link, nothing that .gitignore names."""
    ignored = [line.rstrip("/") for line in (root / ".gitignore").read_text(encoding="utf-8").split() if line]
    found = {file for pattern in _FILES for file in root.glob(pattern)}
    for folder in _FOLDERS:
        found |= set((root / folder).rglob("*"))
    for path in sorted(found):
        file = path.relative_to(root)
        if path.is_symlink() or not path.is_file() or file.as_posix().startswith(_LEFT_OUT):
            continue
        if not any(fnmatch(part, pattern) for part in file.parts for pattern in ignored):
            yield file


def _is_planned(course: Course, file: Path) -> bool:
    """Part of a lesson that is not ready: called after it, in one of its day's folders."""
    return (lesson := _owner(course, file)) is not None and not lesson.ready


def _owner(course: Course, file: Path) -> Lesson | None:
    names = (file.stem, file.stem.partition("_")[2])  # "2_ddp.ipynb", "run_ddp.py", "figures_ddp.py"
    mine = [
        lesson
        for lesson in course.lessons.values()
        if lesson.day in file.parts and (lesson.slug in names or file.stem.startswith(f"{lesson.slug}_"))
    ]
    return max(mine, key=lambda lesson: len(lesson.slug), default=None)


def _edited(root: Path) -> dict[Path, str]:
    """The files that read differently for students."""
    pages = (root / "README.md", *(root / "labs").rglob("README.md"))
    texts = {page.relative_to(root): _for_students(page.read_text(encoding="utf-8")) for page in pages}
    for edit in tomllib.loads(_EDITS.read_text(encoding="utf-8"))["edit"]:
        file = Path(edit["file"])
        if file not in texts:
            texts[file] = (root / file).read_text(encoding="utf-8")
        if texts[file].count(edit["old"]) != 1:
            raise BadInput(
                f"{file} does not hold once what {_EDITS.name} changes for students: {edit['old'].strip()[:60]!r}"
            )
        texts[file] = texts[file].replace(edit["old"], edit["new"])
    return texts


def _for_students(page: str) -> str:
    return _BENCHMARK.sub("", _COURSE_ONLY.sub("", page))
