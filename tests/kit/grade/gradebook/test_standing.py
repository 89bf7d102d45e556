"""Records of cases, and what they add up to."""

from dataclasses import replace
from fractions import Fraction

import pytest

from shardlab.grade.gradebook.record import CaseRecord, RankRecord, Verdict
from shardlab.grade.gradebook.standing import marks_of

RECORD = CaseRecord(
    lesson="1.3",
    exercise="broadcast",
    test="tests/x.py::test_broadcast[4]",
    share=Fraction(2, 3),
    verdict=Verdict.DEADLOCK,
    message='rank 1 says "no"\n<b>\x1b[1m ü',
    seconds=3.25,
    cause=1,
    ranks=(RankRecord(0, "hung", "all_reduce #0", "x.py:1", "stack"), RankRecord(1, "returned", "", "", "")),
)


def test_a_record_is_one_line_and_comes_back_the_same():
    line = RECORD.to_line()
    assert "\n" not in line
    assert CaseRecord.from_line(line) == RECORD


@pytest.mark.parametrize(
    "line", ["", "{}", "[]", "5", '"x"', "null", RECORD.to_line()[:-20], '{"ranks": [], "share": "1"}']
)
def test_a_line_cut_short_is_no_record(line):
    with pytest.raises(ValueError):
        CaseRecord.from_line(line)


def test_the_last_record_of_a_test_counts_and_a_missing_one_earns_nothing(declared):
    passed = replace(RECORD, verdict=Verdict.PASSED, share=Fraction(3), ranks=())
    other = replace(passed, test="tests/x.py::test_broadcast[5]", verdict=Verdict.WRONG)
    marks = marks_of(declared, [replace(passed, verdict=Verdict.INFRA), other, passed])
    (mark,) = [mark for mark in marks if mark.exercise.name == "broadcast"]
    assert (mark.earned, mark.points, mark.complete, mark.unsettled) == (3, 6, False, False)
    assert [case.verdict for case in mark.cases] == [Verdict.PASSED, Verdict.WRONG]
    assert sum(one.earned for one in marks) == 3 and len(marks) == len(declared)


def test_a_record_of_another_course_earns_nothing(declared):
    strange = [replace(RECORD, verdict=Verdict.PASSED, exercise="make_me_rich", share=Fraction(1000))]
    strange += [replace(RECORD, verdict=Verdict.PASSED, lesson="9.9", test="y", share=Fraction(1000))]
    assert sum(mark.earned for mark in marks_of(declared, strange)) == 0


@pytest.mark.parametrize("verdict", list(Verdict))
def test_only_passed_earns_and_only_infra_is_unsettled(standing_of, verdict):
    standing = standing_of(verdict=verdict)
    assert standing.earned == (standing.points if verdict is Verdict.PASSED else 0)
    assert standing.unsettled == (verdict is Verdict.INFRA)
    assert [one.lesson.id for one in standing.lessons] == ["1.3", "1.4"]
    assert sum(one.points for one in standing.lessons) == standing.points == 40
