"""One line per graded case: what grading writes down the moment it knows it, and everything else is computed from."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from fractions import Fraction


class Verdict(StrEnum):
    """How one graded case ended. Only `PASSED` earns points; `INFRA` is our failure, and is never marked at all."""

    PASSED = "pass"
    WRONG = "wrong"
    ERROR = "error"
    EXITED = "exited"
    SIGNAL = "signal"
    DEADLOCK = "deadlock"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out of memory"
    DISK = "disk"
    MALFORMED = "malformed"
    NOT_ATTEMPTED = "not attempted"
    SKIPPED = "skipped"
    INFRA = "infra"


@dataclass(frozen=True)
class RankRecord:
    """What one rank was at when the call failed.

    Attributes:
        state: as in `shardlab.ranks.RankReport`: ``"raised"``, ``"hung"``, ``"exited"``, ...
        last_collective: the communication call it was in or made last, in words; "" for none.
        where: file and line of the learner's code, such as ``"day1_one_gpu_to_many/collectives.py:41"``; or "".
        stack: its stack or traceback, innermost call last; or "".
    """

    rank: int
    state: str
    last_collective: str
    where: str
    stack: str


@dataclass(frozen=True)
class CaseRecord:
    """How one case of a graded test ended.

    Attributes:
        lesson: such as ``"1.3"``.
        exercise: name in the lab.
        test: pytest's node id.
        share: what the case is worth, in points.
        verdict: how it ended.
        message: why it earned nothing, for the learner; "" if it passed.
        seconds: wall-clock time.
        cause: the rank that caused the failure, if one did.
        ranks: what every rank was at, if ranks failed.
    """

    lesson: str
    exercise: str
    test: str
    share: Fraction
    verdict: Verdict
    message: str
    seconds: float
    cause: int | None = None
    ranks: tuple[RankRecord, ...] = field(default=())

    def to_line(self) -> str:
        return json.dumps({**asdict(self), "share": str(self.share)}, ensure_ascii=False)

    @classmethod
    def from_line(cls, line: str) -> CaseRecord:
        """The record that `to_line` made `line` from.

        Raises:
            ValueError: the line is cut short or of something else.
        """
        try:
            data = json.loads(line)
            ranks = tuple(RankRecord(**rank) for rank in data.pop("ranks"))
            share, verdict = Fraction(data.pop("share")), Verdict(data.pop("verdict"))
            return cls(share=share, verdict=verdict, ranks=ranks, **data)
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError) as error:
            raise ValueError(f"no record of a graded case: {line[:80]!r}") from error
