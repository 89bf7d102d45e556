"""What was found out about one student, in a file that only grows: a line per graded case, on disk before the next.

A grader that is killed loses the case it was at, and nothing else. The first line says what was graded: another
submission, other tests or another isolation begin a new file, and the old one is kept beside it.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from shardlab.grade.gradebook.record import CaseRecord


@dataclass(frozen=True)
class Subject:
    """What the records of a file are about.

    Attributes:
        submission: SHA-256 of what was handed in.
        course: SHA-256 of the tests and the kit that judge it.
        isolation: the level of the sandbox.
        seed: SHA-256 of the secret seed, which is not written down.
    """

    submission: str
    course: str
    isolation: str
    seed: str


class Records:
    """The file of one student.

    Attributes:
        cases: all that is on record, in the order of judging.
    """

    def __init__(self, path: Path, subject: Subject) -> None:
        self._path = path
        self._file = None
        path.parent.mkdir(parents=True, exist_ok=True)
        self.cases = self._read(subject)

    def _read(self, subject: Subject) -> list[CaseRecord]:
        """Earlier records of the same subject; of another one the file makes room."""
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
        header = json.dumps(asdict(subject)) + "\n"
        if lines and lines[0].decode(errors="replace") != header:
            self._path.replace(_free_name(self._path))
            lines = []
        whole = [line for line in lines if line.endswith(b"\n")]
        if len(whole) != len(lines):  # the last one was being written when the machine or the grader stopped
            with self._path.open("r+b") as file:
                file.truncate(sum(map(len, whole)))
        if not whole:
            self._append(header)
        return [CaseRecord.from_line(line.decode()) for line in whole[1:]]

    def add(self, case: CaseRecord) -> None:
        """On disk when this returns."""
        self._append(case.to_line() + "\n")
        self.cases.append(case)

    def _append(self, line: str) -> None:
        if self._file is None:
            self._file = self._path.open("ab")
        self._file.write(line.encode())
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _free_name(path: Path) -> Path:
    number = 1
    while (older := path.with_suffix(f".{number}.jsonl")).exists():
        number += 1
    return older


def read_cases(path: Path) -> Sequence[CaseRecord]:
    """The whole records of a file, whoever they are about; none where there is no file."""
    with contextlib.suppress(FileNotFoundError):
        lines = path.read_bytes().splitlines(keepends=True)[1:]
        return [CaseRecord.from_line(line.decode()) for line in lines if line.endswith(b"\n")]
    return []
