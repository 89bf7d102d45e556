"""Records survive whatever ends the grader, and never mix two submissions."""

import json
from fractions import Fraction

import pytest

from shardlab.grade.batch.records import Records, Subject, settled
from shardlab.grade.gradebook.record import CaseRecord, Verdict

SUBJECT = Subject("a" * 64, "b" * 64, "full", "c" * 64)


def case(test: str, verdict: Verdict = Verdict.PASSED) -> CaseRecord:
    return CaseRecord("1.3", "exchange", test, Fraction(1, 3), verdict, "wörds\nin two lines", 0.5)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "records" / "ada.jsonl"


def test_what_was_added_is_there_for_the_next_grader(path):
    with Records(path, SUBJECT) as records:
        records.add(case("one"))
        records.add(case("two", Verdict.DEADLOCK))
    with Records(path, SUBJECT) as records:
        assert records.cases == [case("one"), case("two", Verdict.DEADLOCK)]


@pytest.mark.parametrize("cut", [1, 40, 150])
def test_a_line_that_was_being_written_is_lost_and_nothing_else(path, cut):
    with Records(path, SUBJECT) as records:
        records.add(case("one"))
        records.add(case("two"))
    path.write_bytes(path.read_bytes()[:-cut])
    with Records(path, SUBJECT) as records:
        assert records.cases == [case("one")]
        records.add(case("two"))
    with Records(path, SUBJECT) as records:
        assert records.cases == [case("one"), case("two")]


def test_half_a_header_is_no_header(path):
    path.parent.mkdir()
    path.write_text('{"submission": "aaa')
    with Records(path, SUBJECT) as records:
        assert records.cases == []
        records.add(case("one"))
    with Records(path, SUBJECT) as records:
        assert records.cases == [case("one")]


@pytest.mark.parametrize("field", ["submission", "course", "isolation", "seed"])
def test_another_subject_begins_anew_and_the_old_file_is_kept(path, field):
    with Records(path, SUBJECT) as records:
        records.add(case("one"))
    with Records(path, Subject(**{**vars(SUBJECT), field: "changed"})) as records:
        assert records.cases == []
    kept = path.with_suffix(".1.jsonl").read_text().splitlines()
    assert json.loads(kept[1])["test"] == "one"


def test_a_failure_of_ours_settles_nothing_and_the_last_word_counts():
    cases = [case("one", Verdict.INFRA), case("two"), case("one"), case("three"), case("three", Verdict.INFRA)]
    assert settled(cases) == {"one", "two"}
