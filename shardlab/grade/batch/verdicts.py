"""From the way a test ended to a verdict, the causing rank first."""

from __future__ import annotations

import re
from dataclasses import dataclass

from shardlab.grade.gradebook.record import RankRecord, Verdict
from shardlab.grade.lab import RanksFailed
from shardlab.ranks.pool import PoolError
from shardlab.ranks.report import RankError, RankReport

MESSAGE_CHARACTERS = 8_000
STACK_CHARACTERS = 4_000
_NO_MEMORY = re.compile(r"can't allocate memory|cannot allocate memory|not enough memory|bad_alloc", re.IGNORECASE)
_NO_ROOM = re.compile(r"No space left on device|File too large|Disk quota exceeded")
_HOW = {"deadlock": Verdict.DEADLOCK, "timeout": Verdict.TIMEOUT}
_STATES = {
    "exited": Verdict.EXITED,
    "killed": Verdict.SIGNAL,
    "stopped": Verdict.SIGNAL,
    "unsendable": Verdict.MALFORMED,
}


@dataclass(frozen=True)
class Finding:
    """A verdict and what led to it, as `CaseRecord` wants it."""

    verdict: Verdict
    message: str = ""
    cause: int | None = None
    ranks: tuple[RankRecord, ...] = ()


def finding_of(error: BaseException, message: str, *, in_call: bool, memory_ran_out: bool) -> Finding:
    """What a test that did not pass has found out.

    Args:
        error: that ended it.
        message: pytest's report of it.
        in_call: it came from the test itself, and not from setting it up, which is our business.
        memory_ran_out: the kernel ended a process of the sandbox for lack of memory meanwhile.
    """
    if isinstance(error, RanksFailed):
        ranks = tuple(map(_rank_record, error.error.reports))
        verdict = _of_ranks(error.error, memory_ran_out)
        return Finding(verdict, _cut(str(error), MESSAGE_CHARACTERS), error.error.cause, ranks)
    if isinstance(error, PoolError) or not in_call:
        return Finding(Verdict.INFRA, _cut(message, MESSAGE_CHARACTERS))
    return Finding(Verdict.WRONG, _cut(str(error) or message, MESSAGE_CHARACTERS))


def _of_ranks(error: RankError, memory_ran_out: bool) -> Verdict:
    cause = error.reports[error.cause]
    if memory_ran_out and cause.state == "killed":
        return Verdict.OUT_OF_MEMORY
    if cause.state == "killed" and "SIGXFSZ" in cause.message:
        return Verdict.DISK
    if cause.state == "raised":
        return _of_exception(cause)
    return _HOW.get(error.how) or _STATES.get(cause.state, Verdict.ERROR)


def _of_exception(report: RankReport) -> Verdict:
    if report.error_type == "MemoryError" or _NO_MEMORY.search(report.message):
        return Verdict.OUT_OF_MEMORY
    if report.error_type == "OSError" and _NO_ROOM.search(report.message):
        return Verdict.DISK
    return Verdict.TIMEOUT if report.timed_out else Verdict.ERROR


def _rank_record(report: RankReport) -> RankRecord:
    last = str(report.last_collective) if report.last_collective else ""
    return RankRecord(report.rank, report.state, last, report.where, _cut(report.traceback, STACK_CHARACTERS))


def _cut(text: str, most: int) -> str:
    """The beginning and the end, where the beginning names the failure and the end its place."""
    if len(text) <= most:
        return text
    return f"{text[: most // 2]}\n... {len(text) - most:,} characters are not shown ...\n{text[-most // 2 :]}"
