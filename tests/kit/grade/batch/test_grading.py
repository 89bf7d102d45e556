"""`shardlab grade` on a small class: marks, resuming after kill -9, what changed, and what is refused."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from shardlab.grade.sandbox.level import Level, isolation
from shardlab.syllabus import ROOT, lesson

FOUND = isolation()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOUND.level is Level.NONE, reason=f"no sandbox here: {FOUND.reason}"),
]
LESSON = lesson("1.1")
SOME = 5  # cases on record when the grader is killed
ROSTER = "id,name,email\nada,Ada,\nben,Ben,\ncleo,=1+1,cleo@school\ndan,Dan,\n"


def command(folder: Path, *more: str) -> list[str]:
    start = [sys.executable, "-c", "from shardlab.cli import main; main()", "grade", str(folder / "submissions")]
    return [*start, "--roster", str(folder / "roster.csv"), "--out", str(folder / "out"), "--lessons", "1.1", *more]


def grade(folder: Path, *more: str) -> subprocess.CompletedProcess:
    return subprocess.run(command(folder, *more), capture_output=True, text=True, timeout=500, cwd=ROOT)


def records(folder: Path, student: str) -> list[dict]:
    file = folder / "out" / "records" / f"{student}.jsonl"
    return [json.loads(line) for line in file.read_text().splitlines()[1:]] if file.exists() else []


def survivors() -> list[str]:
    """Processes of a sandbox, and control groups of one."""
    running = subprocess.run(["pgrep", "-fa", "bwrap .*shardlab-sandbox"], capture_output=True, text=True).stdout
    return [*running.splitlines(), *map(str, Path("/sys/fs/cgroup").glob("**/shardlab-*"))]


@pytest.fixture(scope="module")
def school(tmp_path_factory):
    """Ada's are right, Ben's untouched, Cleo handed in an archive of one wrong file, Dan nothing."""
    folder = tmp_path_factory.mktemp("school")
    (folder / "roster.csv").write_text(ROSTER)
    for student, text in (
        ("ada", LESSON.solution.read_text()),
        ("ben", LESSON.lab.read_text()),
        ("cleo", LESSON.solution.read_text() + "\n\ndef count_parameters(config):\n    return 7\n"),
    ):
        file = folder / "submissions" / student / "labs" / LESSON.day / f"{LESSON.slug}.py"
        file.parent.mkdir(parents=True)
        file.write_text(text)
    cleo = folder / "submissions" / "cleo"
    shutil.make_archive(str(cleo), "zip", cleo)
    shutil.rmtree(cleo)
    return folder


def test_a_grader_that_is_killed_loses_nothing_and_grades_nothing_twice(school):
    """Killed as soon as some cases are on record, then left to finish."""
    grader = subprocess.Popen(command(school), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    deadline = time.monotonic() + 300
    while len(records(school, "ada")) < SOME and grader.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(grader.pid, signal.SIGKILL)
    grader.wait()
    deadline = time.monotonic() + 20
    while survivors() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert [each for each in survivors() if "cgroup" not in each] == []
    assert len(records(school, "ada")) >= SOME
    finished = grade(school)
    assert finished.returncode == 0, finished.stderr
    tests = [record["test"] for record in records(school, "ada")]
    assert len(tests) == len(set(tests)) > SOME
    assert survivors() == []
    assert not list((school / "out").glob(".scratch"))


def test_marks_are_those_of_the_submissions(school):
    with (school / "out" / "gradebook.csv").open(encoding="utf-8-sig") as file:
        rows = {row["id"]: row for row in csv.DictReader(file)}
    points = rows["ada"]["points"]
    assert rows["ada"]["total"] == points
    assert (rows["ben"]["total"], rows["dan"]["total"]) == ("0", "0")
    assert 0 < float(rows["cleo"]["total"]) < float(points)
    assert rows["cleo"]["name"].startswith("'=")
    assert "Nothing was handed in" in rows["dan"]["problems"]
    wrong = [each for each in records(school, "cleo") if each["verdict"] == "wrong"]
    assert {each["exercise"] for each in wrong} >= {"count_parameters"}
    assert (school / "out" / "feedback" / "cleo.html").exists()
    assert "full" in (school / "out" / "class.html").read_text() or FOUND.level is Level.USER


def test_only_what_changed_is_graded_again(school):
    of_ada = school / "out" / "records" / "ada.jsonl"
    before = of_ada.stat().st_mtime_ns
    file = school / "submissions" / "ben" / "labs" / LESSON.day / f"{LESSON.slug}.py"
    file.write_text(LESSON.solution.read_text())
    assert grade(school).returncode == 0
    assert of_ada.stat().st_mtime_ns == before
    assert len(records(school, "ben")) == len(records(school, "ada"))
    assert (school / "out" / "records" / "ben.1.jsonl").exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--only", "eve"], 'there is no student "eve"'),
        (["--seed-file", "roster"], "holds no secret of at least 16 bytes"),
        (["--lessons", "9.9"], "9.9"),
    ],
)
def test_bad_wishes_are_refused_in_a_sentence(school, more, sentence):
    refused = grade(school, *more)
    assert refused.returncode == 2
    assert sentence in refused.stderr
    assert "Traceback" not in refused.stderr
