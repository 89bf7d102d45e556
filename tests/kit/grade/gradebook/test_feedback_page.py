"""The learner's page: what it says, and that nothing a student wrote gets out of its place."""

import pytest
from reading import Page, check_standalone

from shardlab.grade.gradebook.failures import split_sentence
from shardlab.grade.gradebook.feedback import feedback_page
from shardlab.grade.gradebook.hints import hints, steps
from shardlab.grade.gradebook.rank_picture import rank_picture
from shardlab.grade.gradebook.record import RankRecord, Verdict
from shardlab.syllabus import ROOT, lesson

RANKS = (
    RankRecord(0, "hung", "all_reduce #3 float32[8] 32 B", "day1/collectives.py:636", ""),
    RankRecord(
        1, "returned", "all_reduce #1 float32[8] 32 B", "day1/collectives.py:636", 'File "collectives.py", line 7'
    ),
    RankRecord(2, "hung", "all_reduce #3 float32[8] 32 B", "day1/collectives.py:636", ""),
    RankRecord(3, "killed", "", "", ""),
)


def page_of(standing) -> Page:
    html = feedback_page(standing)
    check_standalone(html)
    return Page(html)


def test_all_done_is_a_reason_to_be_glad(standing_of):
    page = page_of(standing_of())
    assert "Ada Lovelace" in page.text and "40 of 40 points" in page.text
    assert "Full points" in page.text and "What to do next" not in page.text
    assert "failure" not in page.classes


def test_a_failure_shows_got_expected_hint_and_what_to_open(standing_of):
    message = (
        "AssertionError: broadcast on 2 ranks: rank 0 has -9, expected [-8, 1]: who has it in round 1?\nassert 1 == 2"
    )
    page = page_of(standing_of(broadcast=(Verdict.WRONG, message)))
    assert "broadcast: wrong result in “broadcast values”" in page.text.replace(" :", ":")
    assert "Open labs/day1_one_gpu_to_many/collectives.py , then check it with shardlab test 1.3" in page.text
    assert "Got broadcast on 2 ranks: rank 0 has -9 Expected [-8, 1] who has it in round 1?" in page.text
    assert "The whole message" in page.text and "assert 1 == 2" in page.text
    assert "1 of 2 tests passed" in page.text and "3 of 6 points" in page.text
    assert "Number the ranks by their distance from src" in page.text.replace(" src", " src")
    assert "37 of 40 points" in page.text


def test_a_deadlock_is_drawn(standing_of):
    page = page_of(standing_of(broadcast=(Verdict.DEADLOCK, "rank 1 returned"), ranks=RANKS, cause=1))
    assert page.classes.count("lane") == 4 and page.classes.count("cause") == 1
    assert "rank 0: waits" in page.text and "rank 1: returned" in page.text and "rank 3: was killed" in page.text
    assert "all_reduce #3 float32[8] 32 B" in page.text and "day1/collectives.py:636" in page.text
    assert "Where rank 1 stood" in page.text and "line 7" in page.text


def test_who_is_behind_stands_further_left():
    def stops(picture: str) -> list[float]:
        return [float(part.split('"')[1].rstrip("%")) for part in picture.split("cx=")[1:]]

    ahead, behind, also_ahead = stops(rank_picture(RANKS, 1))
    assert behind < ahead == also_ahead
    messages = [RankRecord(rank, "hung", f"send #{rank} int64[1] 8 B with rank 0", "", "") for rank in range(3)]
    assert len(set(stops(rank_picture(messages, None)))) == 1  # numbers of messages say nothing about who is behind


def test_of_many_ranks_the_cause_is_shown():
    ranks = [RankRecord(rank, "hung", "", "", "") for rank in range(64)]
    picture = rank_picture(ranks, 63)
    assert picture.count('class="lane') == 16 and "rank 63" in picture and "rank 62" not in picture
    assert rank_picture((), None) == ""


def test_an_unsettled_case_is_not_held_against_anybody(standing_of):
    page = page_of(standing_of(broadcast=(Verdict.INFRA, "no cgroup")))
    assert "Some tests could not be judged" in page.text and "so far" in page.text
    assert "not settled, 6 points" in page.text and "Full points" not in page.text


def test_an_untouched_lab_lists_what_to_write_with_hints(standing_of):
    page = page_of(standing_of(verdict=Verdict.NOT_ATTEMPTED))
    assert "0 of 40 points" in page.text and "exchange is still to be written" in page.text
    assert page.text.count("still to be written") == 3 + 2  # three steps, two lessons
    assert "failure" in page.classes and "tag" not in page.classes


def test_nothing_handed_in_and_a_refusal(absent_of):
    assert "No submission of yours was found" in page_of(absent_of("s9")).text
    page = page_of(absent_of("s9", "the archive unpacks to more than 64 MiB"))
    assert "Nothing was graded" in page.text and "more than 64 MiB" in page.text


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_has_a_page(standing_of, verdict):
    page = page_of(standing_of(verdict=verdict))
    assert ("What to do next" in page.text) == (verdict not in (Verdict.PASSED, Verdict.INFRA))


def test_any_text_stays_in_its_place(standing_of, any_text):
    ranks = (RankRecord(0, any_text, any_text, any_text, any_text), RankRecord(1, "hung", any_text, any_text, any_text))
    failure = (Verdict.DEADLOCK, any_text + ", expected " + any_text)
    page = page_of(standing_of(name=any_text, problems=[any_text], ranks=ranks, cause=0, broadcast=failure))
    plain = page_of(
        standing_of(problems=["problem"], ranks=RANKS[:2], cause=0, broadcast=(Verdict.DEADLOCK, "a, expected b"))
    )
    assert {"script", "img"}.isdisjoint(page.classes)
    assert page.classes.count("failure") == plain.classes.count("failure")
    assert page.classes.count("lane") == 2


def test_a_flood_is_cut(standing_of):
    flood = "\x1b[31m" + "spam and eggs\n" * 10**5
    ranks = tuple(RankRecord(rank, "hung", flood, flood, flood) for rank in range(4))
    html = feedback_page(standing_of(broadcast=(Verdict.DEADLOCK, flood), problems=[flood], ranks=ranks, cause=0))
    assert len(html) < 100_000 and "characters are left out here" in html


def test_the_sentence_of_a_message_in_parts():
    assert split_sentence("f is 1.0, expected 2: 2 rounds. More") == ("f is 1.0", "2", "2 rounds. More")
    assert split_sentence("sent [(1, 2)], expected [(1, 3), (2: 4)]: once") == (
        "sent [(1, 2)]",
        "[(1, 3), (2: 4)]",
        "once",
    )
    assert split_sentence("has 1.5, expected 2.5; 3 are wrong. Look.") == ("has 1.5", "2.5", "3 are wrong. Look.")
    assert split_sentence("is 3, expected 4.") == ("is 3", "4", "")
    assert split_sentence("rank 0 left") == ("rank 0 left", "", "")


def test_hints_come_from_the_lab():
    lab = lesson("collectives").lab
    ladder = hints(lab, "exchange")
    assert len(ladder) == 2 and ladder[0].startswith("If both ranks first finish sending")
    assert hints(lesson("ddp").lab, "DataParallel.no_sync") or hints(lesson("ddp").lab, "DataParallel")
    assert hints(lab, "no_such_function") == hints(lab.with_name("no_such_lab.py"), "exchange") == ()
    assert steps("No section.") == ()


def test_paths_are_those_of_the_learner_and_the_line_is_named(standing_of):
    where = "day1_one_gpu_to_many/collectives.py:636"
    stack = f'File "{ROOT}/labs/day1_one_gpu_to_many/collectives.py", line 636'
    ranks = (RankRecord(0, "raised", "", where, stack),)
    standing = standing_of(broadcast=(Verdict.ERROR, f"boom in {ROOT}/labs/x.py"), ranks=ranks, cause=0)
    page = page_of(standing)
    assert "Open labs/day1_one_gpu_to_many/collectives.py , line 636, then check it" in page.text
    assert str(ROOT) not in page.html and "boom in labs/x.py" in page.text
