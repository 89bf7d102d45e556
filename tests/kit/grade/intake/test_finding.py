"""Whose is what: names as people and platforms write them, and what cannot be told is said."""

import os
from pathlib import Path

import pytest
from small_course import CODE, SUMS

from shardlab.bad_input import BadInput
from shardlab.grade.gradebook.standing import Student
from shardlab.grade.intake import Found, find_submissions

ROSTER = [
    Student("s1", "Jane Doe", "jane@example.org"),
    Student("s2", "van der Berg, Jan", "jan@example.org"),
    Student("s3", "José O'Neil-Ñandú", ""),
    Student("s4_b", "Li Wei", ""),
    Student("9001", "Li Wei", ""),
]


@pytest.fixture
def found(tmp_path):
    """Find among entries of these names, a folder where one ends in a slash; what is in it is kept."""

    def found(*names: str, roster: list[Student] = ROSTER) -> Found:
        for name in names:
            path = tmp_path / name
            (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
            if not name.endswith("/"):
                path.write_bytes(CODE)
        return find_submissions(tmp_path, roster)

    return found


def told(found: Found) -> dict[str, str]:
    return {student: source.name for student, source in found.sources.items()}


@pytest.mark.parametrize(
    ("name", "student"),
    [
        ("s1.zip", "s1"),
        ("S1.TAR.GZ", "s1"),
        ("s1/", "s1"),
        ("s1_doe.bundle", "s1"),
        ("s1-final (2).zip", "s1"),
        ("s1 Jane.tar.xz", "s1"),
        ("s4_b.zip", "s4_b"),
        ("s4_b_wei/", "s4_b"),
        ("9001.zip", "9001"),
        ("doejane_12345_67890_labs.zip", "s1"),
        ("doejane_LATE_12345_67890_labs-1.zip", "s1"),
        ("vanderbergjan_1_2_x.zip", "s2"),
        ("oneilñandújosé_1_2_x.zip", "s3"),
        ("liwei_9001_67890_x.zip", "9001"),
        ("s1_12345_67890_labs.zip", "s1"),
        ("Jane Doe_12345_assignsubmission_file_/", "s1"),
        ("Jan van der Berg_12345_assignsubmission_file_/", "s2"),
        ("José O'Neil-Ñandú_7_assignsubmission_file_labs.zip", "s3"),
        ("Jose\u0301 O'Neil-N\u0303andu\u0301_7_assignsubmission_file_/", "s3"),
        ("Participant_9001_assignsubmission_file_/", "9001"),
    ],
)
def test_a_name_is_understood(found, name, student):
    result = found(name)
    assert told(result) == {student: name.rstrip("/")}
    assert result.problems == ()
    assert [each.id for each in result.missing] == [each.id for each in ROSTER if each.id != student]


@pytest.mark.parametrize("name", ["s10.zip", "xs1.zip", "doejohn_1_2_x.zip", "John Doe_7_assignsubmission_file_/", "x"])
def test_what_belongs_to_nobody_is_said(found, name):
    result = found(name)
    assert result.sources == {}
    assert result.problems == (f'"{name.rstrip("/")}" belongs to nobody on the roster',)


@pytest.mark.parametrize(
    ("name", "roster", "students"),
    [
        ("weili_1_2_x.zip", ROSTER, "9001 or s4_b"),
        ("a_b_c.zip", [Student("a", "A", ""), Student("a_b", "B", "")], "a or a_b"),
        ("Jane Doe_7_assignsubmission_file_/", [ROSTER[0], Student("x", "Doe Jane", "")], "s1 or x"),
        ("jane_1_2_x.zip", [Student("s1", "Jane", ""), Student("jane", "Another", "")], "jane or s1"),
    ],
)
def test_what_may_belong_to_several_is_given_to_none(found, name, roster, students):
    result = found(name, roster=roster)
    assert result.sources == {}
    assert result.problems == (f'"{name.rstrip("/")}" may belong to {students}: put the id first',)


def test_what_systems_leave_behind_is_no_submission(found):
    result = found(".DS_Store", "__MACOSX/", "s1.zip", "Jane Doe_7_assignsubmission_onlinetext_/")
    assert told(result) == {"s1": "s1.zip"}
    assert result.problems == (
        '"Jane Doe_7_assignsubmission_onlinetext_" is the text beside a submission and was left out',
    )


@pytest.mark.parametrize("folder", ["s1", "Jane Doe_7_assignsubmission_file_"])
def test_an_archive_alone_in_a_folder_is_the_submission(found, tmp_path, folder):
    assert (
        found(f"{folder}/my labs.tar.gz", f"{folder}/.DS_Store").sources["s1"] == tmp_path / folder / "my labs.tar.gz"
    )
    assert found(f"{folder}/{SUMS}").sources["s1"] == tmp_path / folder


def test_of_several_attempts_the_newest_counts(found, tmp_path):
    result = found("doejane_1_9_labs.zip", "doejane_LATE_1_10_labs-1.zip")
    assert told(result) == {"s1": "doejane_LATE_1_10_labs-1.zip"}
    assert result.problems == (
        's1 has several submissions, "doejane_1_9_labs.zip", "doejane_LATE_1_10_labs-1.zip": '
        '"doejane_LATE_1_10_labs-1.zip" is newest',
    )


def test_without_numbers_the_one_changed_last_counts(found, tmp_path):
    found("s1.zip", f"s1_again/{SUMS}", "s1_old.zip")
    for name, seconds in (("s1.zip", 20), (f"s1_again/{SUMS}", 30), ("s1_again/day1_small", 5), ("s1_again", 1)):
        os.utime(tmp_path / name, (seconds, seconds))
    os.utime(tmp_path / "s1_old.zip", (10, 10))
    assert told(found()) == {"s1": "s1_again"}
    os.utime(tmp_path / "s1.zip", (30, 30))
    result = found()
    assert result.sources == {}
    assert "of which none is the newest" in result.problems[0]
    assert result.problems[0].endswith(": leave one")


def test_attempts_of_different_platforms_cannot_be_compared(found):
    result = found("s1.zip", "doejane_1_9_labs.zip")
    assert result.sources == {}
    assert result.problems == (
        's1 has several submissions of which none is the newest, "doejane_1_9_labs.zip", "s1.zip": leave one',
    )


GRADESCOPE = """\
submission_11:
  :submitters:
  - :name: Jane Doe
    :sid: s1
    :email: jane@example.org
  :created_at: !ruby/object:ActiveSupport::TimeWithZone
    utc: 2026-01-02 03:04:05.678 Z
    zone: &1 !ruby/object:ActiveSupport::TimeZone
      name: Etc/UTC
  :score: 1.0
submission_12:
  :submitters:
  - :name: J. van der Berg
    :email: JAN@example.org
  - :name: José O'Neil-Ñandú
    :sid: ''
  :created_at: !ruby/object:ActiveSupport::TimeWithZone
    zone: *1
submission_9:
  :submitters:
  - :name: Jane Doe
    :sid: S1
submission_13:
  :submitters:
  - :name: Nobody
    :sid: '77'
submission_14:
  :submitters: []
"""


def test_a_gradescope_export_is_told_by_its_list_and_a_group_shares(found, tmp_path):
    (tmp_path / "submission_metadata.yml").write_text(GRADESCOPE)
    result = found(*(f"submission_{number}/{SUMS}" for number in (9, 11, 12, 13, 14)))
    assert told(result) == {"s1": "submission_11", "s2": "submission_12", "s3": "submission_12"}
    assert [each.id for each in result.missing] == ["s4_b", "9001"]
    assert result.problems == (
        '"submission_13" belongs to nobody on the roster',
        '"submission_14" belongs to nobody on the roster',
        's1 has several submissions, "submission_11", "submission_9": "submission_11" is newest',
    )


@pytest.mark.parametrize(
    "text", ["", "a: b: c", "- 1", "submission_1: 1", "submission_1:\n  :submitters: 5", "1:\n  x: y", "\x00"]
)
def test_a_list_that_cannot_be_read_is_refused(found, tmp_path, text):
    (tmp_path / "submission_metadata.yml").write_text(text)
    with pytest.raises(BadInput, match=r"^submission_metadata.yml cannot be read \("):
        found()


def test_a_python_object_in_the_list_is_not_made(found, tmp_path):
    (tmp_path / "submission_metadata.yml").write_text("x: !!python/object/apply:os.mkdir [made]\n")
    with pytest.raises(BadInput, match=r"^submission_metadata.yml cannot be read"):
        found()
    assert not Path("made").exists()


def test_the_folder_has_to_be_one(tmp_path):
    (tmp_path / "all.zip").write_bytes(b"")
    with pytest.raises(BadInput, match="are no folder: name the one that holds a file or folder per student"):
        find_submissions(tmp_path / "all.zip", ROSTER)
