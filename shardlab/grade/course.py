"""The lessons of one checkout, and which of them a file, an id or an exercise belongs to."""

from difflib import get_close_matches
from pathlib import Path

from shardlab.syllabus import Lesson, read


class Course:
    """Lessons of the checkout at `root`.

    Attributes:
        root: folder of syllabus.toml.
        lessons: by id, in the order of the syllabus.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.lessons: dict[str, Lesson] = {
            lesson.id: lesson for day in read(root / "syllabus.toml") for lesson in day.lessons
        }

    def lesson_of(self, path: Path) -> Lesson | None:
        """The lesson that `path`, a file of tests or a notebook, is part of."""
        return next((lesson for lesson in self.lessons.values() if path in (lesson.tests, lesson.notebook)), None)

    def nearest(self, name: str) -> Lesson:
        """The lesson whose id or slug whoever wrote `name` may have meant."""
        known = {**self.lessons, **{lesson.slug: lesson for lesson in self.lessons.values()}}
        (near,) = get_close_matches(name, known, n=1, cutoff=0)
        return known[near]
