"""The roster: who is in the class."""

import csv
import io
import re
import unicodedata
from pathlib import Path

from shardlab.bad_input import BadInput
from shardlab.grade.gradebook.standing import Student

_MAX_BYTES = 16 * 2**20
_REQUIRED, _OPTIONAL = ("id", "name"), ("email",)
_DELIMITERS = ",;\t"
_ID = re.compile(r"\w(?:[\w.@+-]{0,62}[\w@+-])?")  # becomes the name of files and folders
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)  # on Windows, where grades are opened


def read_roster(path: Path) -> list[Student]:
    """Students of a CSV file with the columns id, name and, if you have it, email, in any order; others are ignored.

    Raises:
        BadInput: no such table, or lines that cannot be right; each is named with its number.
    """
    rows = _rows(path)
    if not rows:
        raise BadInput(f"{path.name} is empty: its first line should be id,name,email")
    columns = _columns(path, rows[0][1])
    students: list[Student] = []
    problems: list[str] = []
    lines: dict[str, int] = {}
    for line, row in rows[1:]:
        student = _student(row, columns)
        if len(row) != len(rows[0][1]):
            problem = f"{len(row)} fields, not {len(rows[0][1])}; a name with a comma goes in quotes"
        elif earlier := lines.get(student.id.casefold()):
            problem = f'the id "{student.id}" stands in line {earlier} too'
        else:
            problem = _problem(student.id)
        if problem:
            problems.append(f"line {line}: {problem}")
        else:
            lines[student.id.casefold()] = line
            students.append(student)
    if problems:
        raise BadInput(f"{path.name} cannot be used; {'; '.join(problems)}")
    if not students:
        raise BadInput(f"{path.name} holds no student below its first line")
    return students


def _rows(path: Path) -> list[tuple[int, list[str]]]:
    """Each row that is not blank, with the number of its first line."""
    text = _text(path)
    header = next((line for line in text.splitlines() if line.strip()), "")
    delimiter = max(_DELIMITERS, key=header.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    rows, line = [], 1
    try:
        for row in reader:
            if any(field.strip() for field in row):
                rows.append((line, [unicodedata.normalize("NFC", field).strip() for field in row]))
            line = reader.line_num + 1
    except csv.Error as error:
        raise BadInput(f"{path.name}, line {line}: {error}") from None
    return rows


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
        if len(data) > _MAX_BYTES:
            raise BadInput(f"{path.name} has more than {_MAX_BYTES:,} bytes, too many for a roster")
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise BadInput(f"{path.name}, line {line}: not UTF-8; save the table as CSV in UTF-8") from None
    except OSError as error:
        raise BadInput(f"the roster {path} cannot be read: {error.strerror}") from None


def _columns(path: Path, header: list[str]) -> dict[str, int]:
    names = [name.casefold() for name in header]
    missing = [name for name in _REQUIRED if name not in names]
    twice = [name for name in (*_REQUIRED, *_OPTIONAL) if names.count(name) > 1]
    if missing or twice:
        problem = f"has no column {' or '.join(missing)}" if missing else f"has the column {twice[0]} twice"
        raise BadInput(f"{path.name} {problem}: its first line should be id,name,email")
    return {name: names.index(name) for name in (*_REQUIRED, *_OPTIONAL) if name in names}


def _student(row: list[str], columns: dict[str, int]) -> Student:
    values = {name: row[at] if at < len(row) else "" for name, at in columns.items()}
    return Student(values["id"], values["name"], values.get("email", ""))


def _problem(identity: str) -> str | None:
    if not identity:
        return "the id is empty"
    if not _ID.fullmatch(identity) or _RESERVED.fullmatch(identity):
        return f'the id "{identity[:70]}" cannot name a file; letters, digits and _ . @ + - can, 64 at most'
    return None
