"""The instructor's page."""

import re
from pathlib import Path

import pytest
from reading import Page, check_standalone

from shardlab.grade.gradebook.class_report import class_page, exercise_rows, histogram
from shardlab.grade.gradebook.record import Verdict
from shardlab.grade.gradebook.similarity import Lines, Pair


def page_of(standings, pairs=()) -> Page:
    html = class_page(standings, isolation="user", date="1 December 2026", pairs=pairs)
    check_standalone(html)
    return Page(html)


def test_a_class_with_everything(standing_of, absent_of):
    standings = [
        standing_of("s1"),
        standing_of("s2", name="Grace", broadcast=(Verdict.WRONG, "no"), meet=(Verdict.DEADLOCK, "stuck")),
        standing_of("s3", name="Alan", exchange=(Verdict.INFRA, "no cgroup left")),
        absent_of("s4"),
        absent_of("s5", "the archive is a bomb"),
    ]
    pair = Pair("s1", "s2", 0.83, 90, ((Lines(Path("a/day1/x.py"), 3, 40), Lines(Path("b/day1/x.py"), 5, 42)),))
    page = page_of(standings, [pair])
    assert "1 December 2026. Isolation of the submissions: user" in page.text
    assert "5 students 3 graded 90.6 % median 90.6 % mean 1 open case" in page.text
    assert "Alan s3 1.3 exchange exchange values, case 2 ranks no cgroup left" in page.text
    assert "refused, nothing was graded the archive is a bomb" in page.text
    assert "Nothing handed in by 1: Nobody Home s4" in page.text
    assert "Ada Lovelace s1 Grace s2 83 % day1/x.py:3-40 day1/x.py:5-42" in page.text
    assert "1 not settled is left out" in page.text


def test_the_hardest_exercise_comes_first(standing_of):
    standings = [
        standing_of("s1", meet=(Verdict.DEADLOCK, ""), broadcast=(Verdict.WRONG, "")),
        standing_of("s2", meet=(Verdict.WRONG, "")),
        standing_of("s3", exchange=(Verdict.INFRA, "")),
    ]
    first, second, *rest = exercise_rows(standings)
    assert (first.exercise.name, first.mean, first.full) == ("meet", 66.67, 33.33)
    assert first.verdicts == (("deadlock", 1), ("wrong result", 1))
    assert (second.exercise.name, second.full) == ("broadcast", 66.67)
    assert all(row.mean == 100 for row in rest)  # what is not settled does not count


def test_the_histogram_counts_everybody_once():
    drawn = histogram([0, 9.99, 10, 55, 99.9, 100, 100])
    counts = [int(count) for count in re.findall(r'class="count"[^>]*>(\d+)<', drawn)]
    assert counts == [2, 1, 1, 3]


def test_nobody_at_all():
    page = page_of([])
    assert "0 students 0 graded" in page.text and "No submission has a settled total yet" in page.text


def test_a_perfect_class(standing_of):
    page = page_of([standing_of(f"s{number}") for number in range(3)])
    assert "100.0 % median" in page.text and "To look at" not in page.text and "Intake" not in page.text


def test_any_text_stays_in_its_place(standing_of, absent_of, any_text):
    standings = [
        standing_of("s1", name=any_text, problems=[any_text], broadcast=(Verdict.INFRA, any_text)),
        absent_of("s2", any_text),
    ]
    pairs = [Pair("s1", any_text, 0.9, 20, ((Lines(Path(any_text), 1, 2), Lines(Path("b.py"), 1, 2)),))]
    page = page_of(standings, pairs)
    assert page.text.count("open case") == 1


@pytest.mark.parametrize("many", [300])
def test_a_flood_of_unsettled_cases_is_cut(standing_of, many):
    standings = [standing_of(f"s{number}", broadcast=(Verdict.INFRA, "x")) for number in range(many)]
    page = page_of(standings)
    assert f"{many} open cases" in page.text and "and 100 more, in gradebook.csv" in page.text
