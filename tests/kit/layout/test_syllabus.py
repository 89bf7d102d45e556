"""The syllabus: all lessons, found by id or slug, and helpful about typing errors."""

import pytest

from shardlab.syllabus import UnknownLesson, days, lesson, lessons, read


def test_eight_days_and_37_lessons():
    assert [day.number for day in days()] == list(range(8))
    assert [len(day.lessons) for day in days()] == [5, 4, 4, 5, 4, 4, 7, 4]
    assert len({lesson.slug for lesson in lessons()}) == 37


def test_a_lesson_is_found_by_id_and_by_slug_and_knows_its_parts():
    found = lesson("1.3")
    assert found is lesson("collectives")
    assert [str(path.relative_to(found.root)) for path in found.parts.values()] == [
        "slides/day1_one_gpu_to_many/3_collectives.md",
        "notebooks/day1_one_gpu_to_many/3_collectives.ipynb",
        "labs/day1_one_gpu_to_many/collectives.py",
        "tests/day1_one_gpu_to_many/test_collectives.py",
        "labs/day1_one_gpu_to_many/run_collectives.py",
        "solutions/day1_one_gpu_to_many/collectives.py",
    ]


@pytest.mark.parametrize(
    ("typed", "nearest"),
    [("colectives", "1.3 collectives"), ("1.9", "1.4 launch"), ("DDP", "2.1 ddp"), ("fsdp2", "2.3 fsdp"), ("9", "7.4")],
)
def test_an_unknown_lesson_gets_the_nearest_suggested(typed, nearest):
    with pytest.raises(UnknownLesson, match=f'no lesson "{typed}"; did you mean {nearest}'):
        lesson(typed)


ENTRY = """
[[day]]
slug = "day1_test"
title = "A day"
[[day.lesson]]
id = "{id}"
slug = "x"
title = "A lesson"
hours = 1
status = "{status}"
"""


@pytest.mark.parametrize(
    ("id", "status", "complaint"),
    [("1.2", "ready", "numbered"), ("2.1", "ready", "numbered"), ("1.1", "redy", "must be one of")],
)
def test_a_malformed_entry_is_named(tmp_path, id, status, complaint):
    syllabus = tmp_path / "syllabus.toml"
    syllabus.write_text(ENTRY.format(id=id, status=status))
    with pytest.raises(ValueError, match=complaint):
        read(syllabus)
