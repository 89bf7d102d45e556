"""What went wrong in an exercise, told once: cases of one test that ended alike are one failure."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from shardlab.grade.gradebook.record import CaseRecord, Verdict
from shardlab.grade.gradebook.standing import Mark
from shardlab.grade.gradebook.text import one_line, plain
from shardlab.syllabus import ROOT

MESSAGE_CHARACTERS = 4000
SENTENCE_CHARACTERS = 600
OPENING, CLOSING = "([{", ")]}"

WORDS = {
    Verdict.PASSED: "passed",
    Verdict.WRONG: "wrong result",
    Verdict.ERROR: "raised an error",
    Verdict.EXITED: "a rank left",
    Verdict.SIGNAL: "a rank crashed",
    Verdict.DEADLOCK: "deadlock",
    Verdict.TIMEOUT: "out of time",
    Verdict.OUT_OF_MEMORY: "out of memory",
    Verdict.DISK: "out of disk space",
    Verdict.MALFORMED: "unreadable result",
    Verdict.NOT_ATTEMPTED: "not attempted",
    Verdict.SKIPPED: "not run on this machine",
    Verdict.INFRA: "not judged",
}
MEANING = {
    Verdict.EXITED: "A rank ended its process instead of returning. Look for exit, os._exit or a signal on that path.",
    Verdict.SIGNAL: "A rank's process was killed, most often by an abort below Python: sizes or dtypes of a message "
    "that do not agree on both sides, or memory that was not there.",
    Verdict.DEADLOCK: "Ranks wait for others that never come. The picture shows where each one stands; begin with "
    "the one it points out.",
    Verdict.TIMEOUT: "It was still at work when its time was up. Look for a loop that does not end, or work that grows "
    "faster than the input.",
    Verdict.OUT_OF_MEMORY: "It wanted more memory than the test allows: something is kept in full that should be kept "
    "in part.",
    Verdict.DISK: "It wrote more files than the test allows. No exercise needs any.",
    Verdict.MALFORMED: "What it returned is no plain data: tensors, numbers, strings, and lists or dicts of them.",
    Verdict.SKIPPED: "This test needs what the grading machine lacks.",
    Verdict.INFRA: "The grading machine failed here, not your code. It counts neither for nor against you until a "
    "person has looked.",
}


@dataclass(frozen=True)
class Failure:
    """Cases of one test with one verdict.

    Attributes:
        test: the test's name as words.
        cases: what tells the cases apart, such as ``"4"`` or ``"ring, 3 ranks"``; "" for a test of one case.
        example: the case that is shown, the first: it has the fewest ranks.
        got, expected, note: its first sentence in parts; ``expected`` and ``note`` may be "".
        message: the whole of it.
    """

    test: str
    verdict: Verdict
    cases: tuple[str, ...]
    example: CaseRecord
    got: str
    expected: str
    note: str
    message: str

    @property
    def words(self) -> str:
        return WORDS[self.verdict]

    @property
    def meaning(self) -> str:
        return MEANING.get(self.verdict, "")


def failures_of(mark: Mark) -> tuple[Failure, ...]:
    """Failures of an exercise in the order its tests ran; nothing of cases that were not attempted."""
    grouped: dict[tuple[str, Verdict], list[CaseRecord]] = {}
    for case in mark.cases:
        if case.verdict not in (Verdict.PASSED, Verdict.NOT_ATTEMPTED):
            grouped.setdefault((test_words(case.test)[0], case.verdict), []).append(case)
    return tuple(_failure(test, verdict, cases) for (test, verdict), cases in grouped.items())


def _failure(test: str, verdict: Verdict, cases: list[CaseRecord]) -> Failure:
    message = without_root(plain(cases[0].message, MESSAGE_CHARACTERS)).strip()
    message = re.sub(r"^(AssertionError|Failed): ", "", message)
    got, expected, note = split_sentence(one_line(message.partition("\n")[0], SENTENCE_CHARACTERS))
    told_apart = tuple(test_words(case.test)[1] for case in cases)
    return Failure(test, verdict, told_apart, cases[0], got, expected, note, message)


def without_root(text: str) -> str:
    """`text` with paths as the learner knows them, and not as they are on the machine that grades."""
    return text.replace(f"{ROOT}/", "")


def test_words(node: str) -> tuple[str, str]:
    """A test's name as words, and what tells its case apart.

    >>> test_words("tests/day1/test_sums.py::test_every_rank_gets_the_sum[4]")
    ('every rank gets the sum', '4')
    """
    head, _, case = node.partition("[")
    name = head.rpartition("::")[2].removeprefix("test_").replace("_", " ")
    return one_line(name, 200), one_line(case.removesuffix("]"), 80)


def split_sentence(sentence: str) -> tuple[str, str, str]:
    """Got, expected and the rest of "... is 1.0, expected 2: 2 rounds, in which ..."; a sentence of another kind is all
    "got".

    >>> split_sentence("sums(3) is [1, 2], expected [1, 3]: the last one too")
    ('sums(3) is [1, 2]', '[1, 3]', 'the last one too')
    """
    got, comma, rest = sentence.partition(", expected ")
    if not comma:
        return sentence, "", ""
    end = next(_breaks(rest), len(rest))
    return got, rest[:end].rstrip("."), rest[end:].lstrip(":;. ")


def _breaks(text: str) -> Iterator[int]:
    """Places of ": ", "; " and ". " that stand in no bracket."""
    depth = 0
    for place, character in enumerate(text):
        depth += (character in OPENING) - (character in CLOSING)
        if depth <= 0 and character in ":;." and text[place + 1 : place + 2] in (" ", ""):
            yield place
