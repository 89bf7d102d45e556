"""What was found out about one student, in a file that only grows: a line per graded case, on disk before the next.

A grader that is killed loses the case it was at, and nothing else. The first line says what was graded: another
submission, other tests or another isolation begin a new file, and the old one is kept beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from shardlab.grade.gradebook.record import CaseRecord, Verdict


@dataclass(frozen=True)
class Subject:
    """What the records of a file are about.

    Attributes:
        submission: SHA-256 of what was handed in.
        course: SHA-256 of the tests and the kit that judge it.
        isolation: the level of the sandbox.
        seed: SHA-256 of the secret that inputs derive from; the secret itself is not written down here.
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
        path.parent.mkdir(parents=True, exist_ok=True)
        self.cases = [CaseRecord.from_line(line) for line in self._whole_lines(json.dumps(asdict(subject)))]
        self._file = path.open("ab")

    def __enter__(self) -> Records:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def _whole_lines(self, header: str) -> list[str]:
        """Earlier lines about the same subject, without the header; about another one, the file makes room."""
        lines = self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []
        if lines and lines[0].decode(errors="replace") != header + "\n":
            self._path.replace(_free_name(self._path))
            lines = []
        if not lines:
            self._path.write_text(header + "\n")
            return []
        whole = [line for line in lines if line.endswith(b"\n")]
        if len(whole) != len(lines):  # the last one was being written when the grader or the machine stopped
            os.truncate(self._path, sum(map(len, whole)))
        return [line.decode() for line in whole[1:]]

    def add(self, case: CaseRecord) -> None:
        """On disk when this returns."""
        self._file.write(case.to_line().encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.cases.append(case)


def settled(cases: Iterable[CaseRecord]) -> set[str]:
    """Node ids of the tests about which there is nothing left to find out: a failure of ours settles nothing."""
    latest = {case.test: case for case in cases}
    return {test for test, case in latest.items() if case.verdict is not Verdict.INFRA}


def _free_name(path: Path) -> Path:
    number = 1
    while (older := path.with_suffix(f".{number}{path.suffix}")).exists():
        number += 1
    return older
