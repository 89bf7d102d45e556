"""Everything a grading ends in, written where the instructor asked for it."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

from shardlab.bad_input import BadInput
from shardlab.grade.gradebook.class_report import class_page
from shardlab.grade.gradebook.csv_files import write_canvas, write_gradebook, write_moodle
from shardlab.grade.gradebook.feedback import feedback_page
from shardlab.grade.gradebook.gradescope import results_json
from shardlab.grade.gradebook.similarity import Pair
from shardlab.grade.gradebook.standing import Standing
from shardlab.show.files import write_text

NO_ISOLATION = "none"
FILE_NAME = re.compile(r"\w[\w.@+-]*")


def write_all(
    standings: Sequence[Standing], out: Path, *, isolation: str, date: str, pairs: Sequence[Pair] = ()
) -> list[Path]:
    """Write gradebook.csv, canvas.csv, moodle.csv, class.html, feedback/ID.html and gradescope/ID/results.json.

    Each file is there whole or not at all, and a second run replaces it.

    Args:
        standings: one per student of the roster, all of the same lessons.
        out: its folder is made.
        isolation: how the submissions were kept in: ``"full"``, ``"user"`` or ``"none"``.
        date: when they were graded, in words.
        pairs: of `shardlab.grade.gradebook.similarity`.

    Returns:
        What was written.

    Raises:
        BadInput: marks that were found without isolation, or an id that cannot name a file.
        OSError: `out` cannot be written.
    """
    if isolation == NO_ISOLATION:
        raise BadInput(
            "these marks were found without isolation, where code can write its own verdict, and are not exported; "
            "grade on Linux with bubblewrap or in a container: `shardlab grade --self-test` says what is missing"
        )
    for standing in standings:
        _check_name(standing.student.id)
    out = Path(out)
    written = [
        write_gradebook(standings, out / "gradebook.csv"),
        write_canvas(standings, out / "canvas.csv"),
        write_moodle(standings, out / "moodle.csv"),
    ]
    for standing in standings:
        name = standing.student.id
        results = json.dumps(results_json(standing), allow_nan=False) + "\n"
        written.append(write_text(out / "gradescope" / name / "results.json", results))
        written.append(write_text(out / "feedback" / f"{name}.html", feedback_page(standing)))
    report = class_page(standings, isolation=isolation, date=date, pairs=pairs)
    written.append(write_text(out / "class.html", report))
    return written


def _check_name(name: str) -> None:
    """The roster sees to it that ids name files; nothing is written outside of `out` should one not."""
    if not FILE_NAME.fullmatch(name):
        raise BadInput(f"student id {name!r} cannot name a file; letters, digits and _ . @ + - can, no dot in front")
