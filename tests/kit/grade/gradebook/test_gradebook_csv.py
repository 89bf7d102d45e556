"""CSV files: what was written can be read, a formula is text, and what is open is empty."""

import csv
import io
from pathlib import Path

import pytest

from shardlab.grade.gradebook.csv_files import write_canvas, write_gradebook, write_moodle
from shardlab.grade.gradebook.record import Verdict
from shardlab.grade.gradebook.text import one_line, plain

FORMULA = tuple("=+-@\t\r＝＋－＠")
WRITERS = [write_gradebook, write_canvas, write_moodle]


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, strict=True))


def test_a_gradebook_has_total_lessons_and_exercises(tmp_path, standing_of):
    standing = standing_of(broadcast=(Verdict.WRONG, "no"))
    (row,) = rows_of(write_gradebook([standing], tmp_path / "gradebook.csv"))
    assert (row["id"], row["name"], row["email"]) == ("s1", "Ada Lovelace", "ada@example.org")
    assert row["submission"] == "ab" * 32
    assert row["total"] == f"{standing.points - 3}" and row["points"] == f"{standing.points}"
    assert row["1.3 broadcast (of 6)"] == "3" and row["1.3 exchange (of 4)"] == "4"
    by_lesson = [float(value) for name, value in row.items() if name.startswith("lesson ")]
    by_exercise = [float(value) for name, value in row.items() if name.startswith(("1.3 ", "1.4 "))]
    assert sum(by_lesson) == sum(by_exercise) == float(row["total"])
    assert row["review"] == row["problems"] == ""


def test_thirds_have_two_decimals(tmp_path, standing_of):
    (row,) = rows_of(write_moodle([standing_of(slow_ranks=(Verdict.WRONG, ""))], tmp_path / "moodle.csv"))
    assert row["1.4 launch"] == "83.33" and row["1.3 collectives"] == "100"


def test_an_unsettled_case_leaves_its_marks_open(tmp_path, standing_of):
    standings = [standing_of(broadcast=(Verdict.INFRA, "the sandbox did not start"))]
    (row,) = rows_of(write_gradebook(standings, tmp_path / "gradebook.csv"))
    assert row["review"] == "1.3 broadcast: 1 of 2 cases"
    assert row["1.3 broadcast (of 6)"] == row["total"] == ""
    assert row["1.3 exchange (of 4)"] == "4"
    lesson = next(value for name, value in row.items() if name.startswith("lesson 1.3"))
    assert lesson == ""
    _, row = rows_of(write_canvas(standings, tmp_path / "canvas.csv"))
    assert (row["1.3 collectives"], row["1.4 launch"]) == ("", "18")
    (row,) = rows_of(write_moodle(standings, tmp_path / "moodle.csv"))
    assert (row["1.3 collectives"], row["1.4 launch"], row["all lessons"]) == ("-", "100", "-")


def test_who_handed_in_nothing_has_0_and_says_why(tmp_path, absent_of):
    (row,) = rows_of(write_gradebook([absent_of("s9", "the archive is a bomb", "no labs")], tmp_path / "gradebook.csv"))
    assert (row["total"], row["submission"], row["problems"]) == ("0", "", "the archive is a bomb; no labs")


def test_canvas_finds_header_points_and_student(tmp_path, standing_of):
    path = write_canvas([standing_of(name="O'Brien, Pat")], tmp_path / "canvas.csv")
    with path.open(encoding="utf-8", newline="") as file:
        header, points, row = csv.reader(file, strict=True)
    assert header == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "1.3 collectives", "1.4 launch"]
    assert "Points Possible" in points[0] and points[1:5] == [""] * 4 and points[5:] == ["22", "18"]
    assert row == ["O'Brien, Pat", "", "s1", "ada@example.org", "", "22", "18"]


def test_moodle_marks_are_percent_because_it_refuses_more_than_100(tmp_path, standing_of):
    (row,) = rows_of(write_moodle([standing_of()], tmp_path / "moodle.csv"))
    assert list(row) == ["ID number", "Full name", "Email address", "1.3 collectives", "1.4 launch", "all lessons"]
    assert [row[name] for name in list(row)[3:]] == ["100", "100", "100"]


@pytest.mark.parametrize("write", WRITERS)
def test_any_name_is_one_cell_of_text(tmp_path, standing_of, any_text, write):
    standings = [standing_of(name=any_text, problems=[any_text]), standing_of(id="s2", name="After")]
    path = write(standings, tmp_path / "file.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file, strict=True))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert sum("s1" in row for row in rows) == sum("s2" in row for row in rows) == 1
    for cell in (cell for row in rows for cell in row if cell != "-"):  # Moodle's sign for an open mark
        assert not cell.startswith(FORMULA)
        assert not any(character in cell for character in "\0\x1b\x9b\n\r\u202e")
    name = next(row for row in rows if "s1" in row)[1 if write is not write_canvas else 0]
    assert name.removeprefix("'") == one_line(any_text) or (write is write_canvas and name == "s1")


def test_canvas_never_meets_a_second_row_of_points(tmp_path, standing_of):
    rows = rows_of(write_canvas([standing_of(name="Points Possible")], tmp_path / "canvas.csv"))
    assert ["Points Possible" in row["Student"] for row in rows] == [True, False]


@pytest.mark.parametrize("write", WRITERS)
def test_a_class_of_nobody_is_a_header(tmp_path, write):
    assert len(write([], tmp_path / "file.csv").read_text(encoding="utf-8-sig").splitlines()) <= 2


def test_excel_is_told_the_encoding(tmp_path, standing_of):
    path = write_gradebook([standing_of(name="Łukasz")], tmp_path / "gradebook.csv")
    assert path.read_bytes().startswith(b"\xef\xbb\xbf")
    assert "Łukasz" in io.StringIO(path.read_text(encoding="utf-8-sig")).read()


def test_text_keeps_its_beginning_and_its_end():
    cut = plain("a" * 10_000 + "the end", 1000)
    assert cut.startswith("aaa") and cut.endswith("the end") and "characters are left out" in cut
    assert len(cut) < 1100
    assert len(plain("\x1b[1m" * 10**6, 1000)) < 1100
