"""All files of a grading at once."""

import json
import time

import pytest

from shardlab.bad_input import BadInput
from shardlab.grade.gradebook.export import write_all
from shardlab.grade.gradebook.record import Verdict

TOLD = {"isolation": "full", "date": "2026-12-01"}


def test_every_file_is_written_and_a_second_run_replaces_it(tmp_path, standing_of, absent_of):
    standings = [standing_of("s1", verdict=Verdict.WRONG), absent_of("josé.müller@uni-x.example")]
    first = write_all(standings, tmp_path / "grades", **TOLD)
    assert sorted(str(path.relative_to(tmp_path / "grades")) for path in first) == [
        "canvas.csv",
        "class.html",
        "feedback/josé.müller@uni-x.example.html",
        "feedback/s1.html",
        "gradebook.csv",
        "gradescope/josé.müller@uni-x.example/results.json",
        "gradescope/s1/results.json",
        "moodle.csv",
    ]
    assert write_all([standing_of("s1"), standings[1]], tmp_path / "grades", **TOLD) == first
    assert json.loads((tmp_path / "grades/gradescope/s1/results.json").read_text())["score"] == 40
    assert sorted(path for path in (tmp_path / "grades").rglob("*") if path.is_file()) == sorted(first)


def test_marks_without_isolation_are_not_exported(tmp_path, standing_of):
    with pytest.raises(BadInput, match="without isolation"):
        write_all([standing_of()], tmp_path / "grades", isolation="none", date="today")
    assert not (tmp_path / "grades").exists()


@pytest.mark.parametrize("name", ["../s1", "a/b", "..", "", ".hidden", "a\0b", "a\nb", "C:\\x", "-rf"])
def test_an_id_that_leads_out_of_the_folder_is_refused(tmp_path, standing_of, name):
    with pytest.raises(BadInput, match="cannot name a file"):
        write_all([standing_of("s1"), standing_of(name)], tmp_path / "grades", **TOLD)
    assert list(tmp_path.iterdir()) == []


def test_the_same_marks_give_the_same_bytes(tmp_path, standing_of):
    standings = [standing_of(broadcast=(Verdict.ERROR, "boom"))]
    once, twice = (write_all(standings, tmp_path / name, **TOLD) for name in ("once", "twice"))
    assert [path.read_bytes() for path in once] == [path.read_bytes() for path in twice]


def test_300_students_take_a_second_or_two(tmp_path, standing_of):
    failed = (Verdict.WRONG, "rank 0 has 1, expected 2: look")
    standings = [standing_of(f"s{number}", broadcast=failed, meet=failed) for number in range(300)]
    begin = time.process_time()
    written = write_all(standings, tmp_path, **TOLD)
    assert len(written) == 604
    assert time.process_time() - begin < 10  # 0.7 on one core of an AMD EPYC; what grows with the square takes minutes
