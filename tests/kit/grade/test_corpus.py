"""The corpus: submissions that cheat, break or are merely odd, each judged in the real sandbox as expected.

submissions/NAME/labs/ holds only the definitions that replace the reference solution's own; submissions/NAME/
expected.toml says in a sentence what is tried, and which verdicts some tests must end with.
"""

import hashlib
import shutil
import tempfile
import time
import tomllib
from pathlib import Path

import psutil
import pytest

from shardlab.grade.batch.judge import Case
from shardlab.grade.batch.queue import forking_server, run_all
from shardlab.grade.batch.records import Records, Subject
from shardlab.grade.batch.student import Job
from shardlab.grade.intake import take_in
from shardlab.grade.sandbox.level import Level, isolation
from shardlab.grade.sandbox.slot import FIRST_USER_ID
from shardlab.syllabus import ROOT, lesson

FOLDER = Path(__file__).parent / "submissions"
NAMES = sorted(folder.parent.name for folder in FOLDER.glob("*/expected.toml"))
FOUND = isolation()
SLOTS = 2
SECRET = b"of the corpus: its inputs never change"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOUND.level is Level.NONE, reason=f"no sandbox here: {FOUND.reason}"),
]


def expected(name: str) -> dict:
    return tomllib.loads((FOLDER / name / "expected.toml").read_text())


def hand_in(name: str, into: Path) -> Path:
    """The reference solutions with the submission's definitions at the end of its own, and what else it ships."""
    shutil.copytree(ROOT / "solutions", into, ignore=shutil.ignore_patterns("__pycache__"))
    labs = FOLDER / name / "labs"
    for file in [file.relative_to(labs) for file in labs.rglob("*") if file.is_file()]:
        solution = ROOT / "solutions" / file
        before = f"{solution.read_text()}\n\n" if solution.is_file() else ""
        text = before + (labs / file).read_text()
        if expected(name).get("form") == "CRLF and BOM":
            text = "\ufeff" + text.replace("\n", "\r\n")
        (into / file).write_bytes(text.encode())
    return into


def leftovers() -> set[str]:
    """Sandboxes and ranks, control groups, and files where ranks leave some."""
    found = {str(path) for folder in ("/tmp", "/dev/shm") for path in Path(folder).glob("*shardlab-corpus*")}
    found |= {str(path) for path in Path(tempfile.gettempdir()).glob("shardlab-sandbox-*")}
    found |= {str(path) for path in Path("/sys/fs/cgroup").glob("**/shardlab-*")}
    for process in psutil.process_iter(["pid", "uids", "cmdline"]):
        words = process.info["cmdline"] or []
        user = process.info["uids"].real if process.info["uids"] else 0
        if user >= FIRST_USER_ID or "bwrap" in words[:1] or words[:2] == ["/bin/sleep", "600"]:
            found.add(f"process {process.pid}: {' '.join(words[-3:])}")
    return found


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """Of each submission the verdict of each test that was asked for; all judged in one batch."""
    place = tmp_path_factory.mktemp("corpus")
    (place / "scratch").mkdir()
    before = leftovers()
    jobs = []
    for name in NAMES:
        wanted = expected(name)
        about = lesson(wanted["lesson"])
        taken = take_in(hand_in(name, place / "handed" / name), name, place / "clean" / name)
        assert taken.sha256 is not None, f"{name}: {taken.problems}"
        tests = frozenset(f"{about.tests.relative_to(ROOT).as_posix()}::{test}" for test in wanted["verdicts"])
        case = Case(taken.folder, taken.sha256, (about,), FOUND.level, SECRET, tests)
        subject = Subject(taken.sha256, "corpus", FOUND.level, hashlib.sha256(SECRET).hexdigest())
        files = place / "records" / f"{name}.jsonl", place / "logs" / f"{name}.txt"
        jobs.append(Job(name, case, subject, *files, place / "scratch"))
    given_up = {}
    run_all(jobs, SLOTS, forking_server(), lambda job, problem: given_up.update({job.student: problem}))
    found = {}
    for job in jobs:
        with Records(job.records, job.subject) as records:
            found[job.student] = {case.test.partition("::")[2]: case for case in records.cases}
    found["given up"] = {name: problem for name, problem in given_up.items() if problem}
    deadline = time.monotonic() + 10
    while leftovers() - before and time.monotonic() < deadline:
        time.sleep(0.1)
    found["left over"] = leftovers() - before
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_submission_is_judged_as_expected(verdicts, name):
    wanted = expected(name)["verdicts"]
    found = verdicts[name]
    assert found.keys() == wanted.keys(), verdicts["given up"].get(name)
    for test, verdict in wanted.items():
        allowed = verdict if isinstance(verdict, list) else [verdict]
        assert found[test].verdict in allowed, f"{test} ended as {found[test].verdict}: {found[test].message}"


def test_no_judge_was_brought_down_and_nothing_is_left(verdicts):
    assert verdicts["given up"] == {}
    assert verdicts["left over"] == set()


def test_there_are_enough_of_both_kinds():
    honest = [name for name in NAMES if name.startswith("honest_")]
    assert len(honest) >= 5
    assert len(NAMES) - len(honest) >= 40
    for name in set(NAMES) - set(honest):
        verdicts = expected(name)["verdicts"].values()
        assert any(verdict != "pass" for verdict in verdicts), f"{name} is expected to pass"
