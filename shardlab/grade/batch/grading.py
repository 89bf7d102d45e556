"""`shardlab grade`: from a folder of submissions and a roster to gradebook, feedback and class report."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from shardlab.bad_input import BadInput
from shardlab.grade.batch.catalogue import Entry, catalogue
from shardlab.grade.batch.judge import Case
from shardlab.grade.batch.queue import forking_server, run_all
from shardlab.grade.batch.records import Records, Subject, settled
from shardlab.grade.batch.student import Job
from shardlab.grade.course import Course
from shardlab.grade.gradebook.export import write_all
from shardlab.grade.gradebook.record import CaseRecord
from shardlab.grade.gradebook.similarity import similar_pairs
from shardlab.grade.gradebook.standing import Standing, Student, marks_of
from shardlab.grade.intake import Submission, find_submissions, read_roster, take_in
from shardlab.grade.manifest import Exercise, exercises
from shardlab.grade.sandbox.control_group import remove_abandoned
from shardlab.grade.sandbox.level import Level, isolation
from shardlab.grade.sandbox.self_test import require_isolation
from shardlab.show.progress import progress
from shardlab.syllabus import ROOT, Lesson


@dataclass(frozen=True)
class Wish:
    """What an instructor asked for.

    Attributes:
        submissions: folder with a file or folder per student.
        roster: CSV with id, name, email.
        out: folder for everything that comes of it; grading goes on where it stopped.
        lessons: to grade.
        jobs: how many submissions at a time.
        seed_file: holds the secret that inputs derive from; None: one is made in `out`.
        only: grade this student alone; the reports are about all.
        again: judge also what has been judged before.
    """

    submissions: Path
    roster: Path
    out: Path
    lessons: tuple[Lesson, ...]
    jobs: int
    seed_file: Path | None = None
    only: str | None = None
    again: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        standings: of everybody on the roster.
        files: that were written.
        problems: for the instructor.
    """

    standings: tuple[Standing, ...]
    isolation: Level
    files: tuple[Path, ...]
    problems: tuple[str, ...]


def grade_class(wish: Wish) -> Outcome:
    """Grade everybody on the roster who handed something in.

    Raises:
        BadInput: no isolation on this machine, or a roster, folder or secret that cannot be used.
    """
    found_level = isolation()
    if found_level.level is Level.NONE:
        raise BadInput(f"strangers' code is not run here without a sandbox: {found_level.reason}")
    roster = read_roster(wish.roster)
    if wish.only is not None and wish.only not in {student.id for student in roster}:
        raise BadInput(f'there is no student "{wish.only}" in {wish.roster}')
    found = find_submissions(wish.submissions, roster)
    with _own(wish.out) as scratch:
        secret = _secret(wish)
        require_isolation(found_level.level)
        taken = _take_in_all(found.sources, wish.out / "submissions")
        context = forking_server()
        entries = catalogue(wish.lessons, context)
        grader = _Grader(wish, found_level.level, secret, scratch, entries)
        jobs = [grader.job(submission) for submission in taken.values() if submission.sha256 is not None]
        jobs = [job for job in jobs if wish.only in (None, job.student)]
        if wish.again:
            for job in jobs:
                job.records.unlink(missing_ok=True)
        jobs = [job for job in jobs if not grader.is_settled(job)]
        given_up: dict[str, str] = {}
        with progress("grading", len(jobs)) as advance:

            def ended(job: Job, problem: str) -> None:
                if problem:
                    given_up[job.student] = f"{job.student}: {problem}; see {job.log}"
                advance()

            run_all(jobs, wish.jobs, context, ended)
        standings = tuple(grader.standing(student, taken.get(student.id)) for student in roster)
        files = _write(standings, taken, wish, found_level.level)
    return Outcome(standings, found_level.level, files, (*found.problems, *given_up.values()))


class _Grader:
    """Knows what is to be judged, and where it stands."""

    def __init__(self, wish: Wish, level: Level, secret: bytes, scratch: Path, entries: Sequence[Entry]) -> None:
        self._wish = wish
        self._level = level
        self._secret = secret
        self._scratch = scratch
        self._entries = entries
        course = Course(ROOT)
        self._exercises: list[Exercise] = [one for lesson in wish.lessons for one in exercises(course, lesson).values()]
        self._course_hash = _course_hash()

    def job(self, submission: Submission) -> Job:
        out, name = self._wish.out, submission.student
        subject = Subject(submission.sha256, self._course_hash, self._level, hashlib.sha256(self._secret).hexdigest())
        case = Case(submission.folder, submission.sha256, self._wish.lessons, self._level, self._secret)
        return Job(name, case, subject, out / "records" / f"{name}.jsonl", out / "logs" / f"{name}.txt", self._scratch)

    def cases(self, job: Job) -> list[CaseRecord]:
        with Records(job.records, job.subject) as records:
            return records.cases

    def is_settled(self, job: Job) -> bool:
        return {entry.test for entry in self._entries} <= settled(self.cases(job))

    def standing(self, student: Student, submission: Submission | None) -> Standing:
        """A case without a record was not judged, and says so."""
        if submission is None or submission.sha256 is None:
            problems = ("Nothing was handed in.",) if submission is None else submission.problems
            return Standing(student, None, problems, marks_of(self._exercises, ()))
        records = self.cases(self.job(submission))
        done = {record.test for record in records}
        unjudged = [entry.unjudged("not judged yet") for entry in self._entries if entry.test not in done]
        marks = marks_of(self._exercises, [*records, *unjudged])
        return Standing(student, submission.sha256, submission.problems, marks)


@contextlib.contextmanager
def _own(out: Path) -> Iterator[Path]:
    """Be the only grader that writes to `out`; a folder there for what goes with the run, empty at its start.

    Raises:
        BadInput: another grader is at work there.
    """
    out.mkdir(parents=True, exist_ok=True)
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BadInput(f"another grading writes to {out}: wait for it, or give another --out") from None
        remove_abandoned()
        scratch = (out / ".scratch").resolve()
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


def _secret(wish: Wish) -> bytes:
    """The course's secret: from the file that was named, or made once and kept beside the results."""
    if wish.seed_file is not None:
        secret = wish.seed_file.read_bytes().strip() if wish.seed_file.is_file() else b""
        if len(secret) < 16:
            raise BadInput(f"{wish.seed_file} holds no secret of at least 16 bytes: openssl rand -hex 32 > FILE")
        return secret
    file = wish.out / "seed"
    if not file.exists():
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as new:
            new.write(secrets.token_hex(32))
    return file.read_bytes()


def _take_in_all(sources: dict[str, Path], into: Path) -> dict[str, Submission]:
    """By student, what was handed in, as clean files."""
    shutil.rmtree(into, ignore_errors=True)
    with progress("reading submissions", len(sources)) as advance:
        taken = {}
        for student, source in sources.items():
            taken[student] = take_in(source, student, into / student)
            advance()
    return taken


def _write(standings: Sequence[Standing], taken: dict[str, Submission], wish: Wish, level: Level) -> tuple[Path, ...]:
    files = {name: [one.folder / file for file in one.files] for name, one in taken.items() if one.folder is not None}
    pairs = similar_pairs(files, [lesson.lab for lesson in Course(ROOT).lessons.values() if lesson.lab.is_file()])
    date = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    return tuple(write_all(standings, wish.out, isolation=level, date=date, pairs=pairs))


def _course_hash() -> str:
    """Of all that judges: tests, and the kit under them."""
    digest = hashlib.sha256()
    for file in sorted([*ROOT.glob("shardlab/**/*.py"), *ROOT.glob("tests/day*/*.py")]):
        digest.update(file.relative_to(ROOT).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()
