"""Marks as CSV: the whole gradebook, and what Canvas and Moodle import.

Whatever a student may have chosen, a name above all, is text: a spreadsheet must not take it for a formula. And a case
that we failed to judge leaves its marks open: an empty cell, never 0 and never points.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from shardlab.grade.gradebook.record import Verdict
from shardlab.grade.gradebook.standing import LessonMark, Mark, Standing, Sum
from shardlab.grade.gradebook.text import decimal, one_line, percent
from shardlab.show.files import write_text

# Begins a formula in some spreadsheet (OWASP, "CSV Injection"); the wide forms do where they are folded to narrow ones.
FORMULA = ("=", "+", "-", "@", "\t", "\r", "＝", "＋", "－", "＠")
BOM = "\ufeff"  # without it Excel reads UTF-8 as the encoding of its country
OPEN = ""  # nothing is settled yet


def text_cell(text: str) -> str:
    """One line of text that no spreadsheet computes.

    >>> text_cell("=1+1"), text_cell(" Ada\\nLovelace")
    ("'=1+1", 'Ada Lovelace')
    """
    line = one_line(text)
    return f"'{line}" if line.startswith(FORMULA) else line


def points_cell(marks: Sum | Mark) -> str:
    return OPEN if marks.unsettled else decimal(marks.earned)


def write_gradebook(standings: Sequence[Standing], path: Path) -> Path:
    """Everything, one row per student: who, what was graded, total, each lesson, each exercise, and what to look at.

    Column "review" names the exercises with a case that we failed to judge; their cells, and the totals they belong
    to, are empty until it is settled.
    """
    lessons = standings[0].lessons if standings else ()
    header = ["id", "name", "email", "submission", "total", "points", "review", "problems"]
    header += [f"lesson {one.lesson.id} {one.lesson.slug} (of {one.points})" for one in lessons]
    header += [f"{one.lesson.id} {mark.exercise.name} (of {mark.points})" for one in lessons for mark in one.marks]
    return write_text(path, BOM + _csv([header, *map(_gradebook_row, standings)]))


def _gradebook_row(standing: Standing) -> list[str]:
    student = standing.student
    return [
        *map(text_cell, (student.id, student.name, student.email, standing.submission or "")),
        points_cell(standing),
        str(standing.points),
        text_cell(review(standing)),
        text_cell("; ".join(standing.problems)),
        *map(points_cell, standing.lessons),
        *map(points_cell, standing.marks),
    ]


def review(standing: Standing) -> str:
    """Which exercises wait for a person, as ``1.3 ring_all_reduce: 2 of 6 cases``; "" if none does."""
    return "; ".join(
        f"{mark.exercise.lesson.id} {mark.exercise.name}: "
        f"{Counter(case.verdict for case in mark.cases)[Verdict.INFRA]} of {len(mark.cases)} cases"
        for mark in standing.marks
        if mark.unsettled
    )


def write_canvas(standings: Sequence[Standing], path: Path) -> Path:
    """What Canvas takes under Grades, Import: an assignment per lesson, made where it has none of that name.

    A student is found by SIS User ID, then by SIS Login ID. "ID" stays empty: it is Canvas's own number, and one of
    the school's could be that of somebody else. Canvas adds up the lessons itself, so there is no total.

    Source: Canvas, lib/gradebook_importer.rb (columns, "Points Possible" in the first cell of the second row).
    """
    lessons = standings[0].lessons if standings else ()
    rows = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", *map(_assignment, lessons)]]
    rows += [["    Points Possible", "", "", "", "", *(str(one.points) for one in lessons)]]
    for standing in standings:
        student = standing.student
        name = text_cell(student.name)
        if "Points Possible" in name:  # Canvas would take the row for the one above
            name = text_cell(student.id)
        row = [name, "", text_cell(student.id), text_cell(student.email), ""]
        rows.append(row + [points_cell(one) for one in standing.lessons])
    return write_text(path, _csv(rows))


def write_moodle(standings: Sequence[Standing], path: Path) -> Path:
    """What Moodle takes under Grades, Import, CSV file: map "ID number" or "Email address" to the user, and the columns
    you want to grade items.

    Marks are percent: a grade item that Moodle makes goes up to 100, and one value above refuses the whole import. So
    does one student Moodle does not know. An open mark is "-", Moodle's sign for none.

    Source: Moodle, grade/import/csv/classes/load_data.php.
    """
    lessons = standings[0].lessons if standings else ()
    rows = [["ID number", "Full name", "Email address", *map(_assignment, lessons), "all lessons"]]
    for standing in standings:
        student = standing.student
        row = [*map(text_cell, (student.id, student.name, student.email))]
        rows.append(row + [_percent_cell(one) for one in (*standing.lessons, standing)])
    return write_text(path, _csv(rows))


def _percent_cell(marks: Sum) -> str:
    return "-" if marks.unsettled else decimal(percent(marks.earned, marks.points))


def _assignment(one: LessonMark) -> str:
    return f"{one.lesson.id} {one.lesson.slug}"


def _csv(rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    return text.getvalue()
