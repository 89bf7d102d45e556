"""One error for one failed call: every rank's state, last collective, file and line, the causing rank first."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from typing import Any

from shardlab.observe.calls import POINT_TO_POINT, Call, short_file
from shardlab.ranks import wire
from shardlab.ranks.call_folder import CallFolder
from shardlab.ranks.reading import read_regular
from shardlab.ranks.stack import Frame, read_stack, torch_call, user_frame
from shardlab.ranks.status_page import read_last_call
from shardlab.ranks.supervise import Ending, Fate

# What a rank sees when a peer has gone: the consequence, not the cause.
_LOST_PEER = (
    "connection closed by peer",
    "connection reset by peer",
    "broken pipe",
    "connection refused",
    "socket closed",
    "recvbytes failed",
    "failed to recv",
    "remote process exited",
    "connection was likely closed",
)
_TIMED_OUT = ("timed out", "timeout")


@dataclass(frozen=True)
class RankReport:
    """What became of one rank.

    Attributes:
        rank: which.
        state: ``returned``, ``raised``, ``unsendable`` (its result is not plain data), ``exited``, ``killed``,
            ``stopped``, ``hung`` (not finished when the call was ended).
        message: of the exception, or what happened in words.
        error_type: qualified name of the exception; empty without one.
        traceback: of the exception, from the caller's function on; of a hung rank, where it stands.
        last_collective: the last call it began, None: none.
        file, line: where it raised or stands, the innermost line outside torch and the kit ("" and 0: unknown).
        inside: the function of torch that line called, where a hung rank waits.
        finished: when it finished, seconds on the monotonic clock; None: it did not.
        output: what it wrote to stdout and stderr.
    """

    rank: int
    state: str
    message: str = ""
    error_type: str = ""
    exercise: str | None = None
    traceback: str = ""
    last_collective: Call | None = None
    file: str = ""
    line: int = 0
    inside: str = ""
    finished: float | None = None
    output: str = ""

    @property
    def failed(self) -> bool:
        return self.state != "returned"

    @property
    def vanished(self) -> bool:
        """Whether the process ended without a word: that is never another rank's echo, except for an abort of torch."""
        return self.state == "exited" or (self.state == "killed" and "SIGABRT" not in self.message)

    @property
    def lost_a_peer(self) -> bool:
        """Whether its error only says that another rank is gone."""
        return self.state == "raised" and any(sign in self.message.lower() for sign in _LOST_PEER)

    @property
    def timed_out(self) -> bool:
        """Whether its error only says that it waited in vain."""
        return self.state == "raised" and any(sign in self.message.lower() for sign in _TIMED_OUT)

    @property
    def where(self) -> str:
        """Where it raised or stands; of a rank that is gone or done, where its last collective was."""
        if not self.file and self.last_collective:
            return f"{short_file(self.last_collective.file)}:{self.last_collective.line}"
        return f"{short_file(self.file)}:{self.line}" if self.file else ""

    def headline(self) -> str:
        """One line: who, what, where."""
        parts = [f"rank {self.rank} {self.state}"]
        if self.where:
            parts.append(f" at {self.where}")
        if what := f"{self.error_type}: {self.message}" if self.error_type else self.message:
            parts.append(f": {what}")
        return "".join(parts)


class RankError(RuntimeError):
    """A call of `run_ranks` that did not return on every rank.

    Attributes:
        cause: index of the rank that caused it.
        reports: one per rank.
        how: ``failed``, ``deadlock`` or ``timeout``.
    """

    def __init__(self, how: str, cause: int, reports: list[RankReport], diagnosis: str) -> None:
        super().__init__(how, cause)
        self.how = how
        self.cause = cause
        self.reports = reports
        self.diagnosis = diagnosis

    def __str__(self) -> str:
        cause = self.reports[self.cause]
        headline = cause.headline() if cause.failed else self.diagnosis
        diagnosis = self.diagnosis if cause.failed else ""
        parts = [headline, diagnosis, self._table(), _indented(cause.traceback)]
        return "\n".join(part for part in parts if part)

    def _table(self) -> str:
        rows = [("rank", "state", "last collective", "where")]
        first = [self.reports[self.cause]]
        for report in first + [other for other in self.reports if other.rank != self.cause]:
            last = str(report.last_collective) if report.last_collective else "none"
            rows.append((str(report.rank), report.state, last, report.where or "-"))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join("  " + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def build_reports(folder: CallFolder, ending: Ending) -> tuple[list[RankReport], list[Any]]:
    """Each rank's report, and the value of each that returned."""
    reports, values = [], []
    for rank, fate in enumerate(ending.fates):
        outcome = {} if fate.stuck else _read_outcome(folder, rank)
        values.append(outcome.pop("value", None))
        seen = {
            "rank": rank,
            "last_collective": read_last_call(folder.status(rank)),
            "output": _read_output(folder, rank),
        }
        reports.append(RankReport(**seen, **(outcome or _without_outcome(folder, rank, fate, ending.how))))
    return reports, values


def _read_outcome(folder: CallFolder, rank: int) -> dict[str, Any]:
    """What the rank wrote as its outcome; {} if nothing. It may have written anything, and then says so."""
    try:
        message = read_regular(folder.result(rank))
        return {} if message is None else _checked(wire.decode(message))
    except Exception as error:  # cut short, nested without end, of types torch cannot make, ...
        return {"state": "unsendable", "message": f"its result cannot be read: {error}"}


def _checked(outcome: Any) -> dict[str, Any]:
    """`outcome` if it is what `rank_main` writes; only a rank that wrote its own differs."""
    if not isinstance(outcome, dict) or outcome.get("state") not in ("returned", "raised", "unsendable"):
        raise ValueError("it is not what a rank writes")
    for name, kind in _OUTCOME.items():
        if name in outcome and not isinstance(outcome[name], kind):
            raise ValueError(f"its {name} is a {type(outcome[name]).__name__}")
    if unknown := outcome.keys() - {"state", "value", *_OUTCOME}:
        raise ValueError(f"it has {sorted(map(str, unknown))}")
    return outcome


_OUTCOME = {
    "error_type": str,
    "message": str,
    "exercise": str | None,
    "traceback": str,
    "file": str,
    "line": int,
    "finished": float,
}


def _read_output(folder: CallFolder, rank: int, most: int = 1 << 20) -> str:
    """The last MiB of what the rank wrote."""
    try:
        text = read_regular(folder.output(rank), most, end=True) or b""
    except ValueError as error:
        return f"({error})\n"
    cut = f"... only the last {most:,} bytes of output are shown\n" if len(text) == most else ""
    return cut + text.decode(errors="replace")


def _without_outcome(folder: CallFolder, rank: int, fate: Fate, how: str) -> dict[str, Any]:
    """A rank that wrote no result: it ended, or stands somewhere."""
    if not fate.stuck:
        return {**_ended(fate.exit_status), "finished": fate.finished}
    frames = read_stack(folder.stack(rank))
    place = {}
    if frame := user_frame(frames):
        place = {"file": frame.file, "line": frame.line, "inside": torch_call(frames)}
    message = "it was stopped (SIGSTOP)" if fate.stopped else _HUNG[how]
    return {
        "state": "stopped" if fate.stopped else "hung",
        "message": message,
        "traceback": _stack_text(frames),
        **place,
    }


_HUNG = {
    "deadlock": "it waits for other ranks, and so do they: nobody moves",
    "timeout": "it had not returned when the call's time was up",
    "failed": "it still waited when the call was ended",
    "cancelled": "the call was called off",
}


def _ended(exit_status: int) -> dict[str, Any]:
    if exit_status < 0:
        return {"state": "killed", "message": f"the process was ended by {signal.Signals(-exit_status).name}"}
    return {"state": "exited", "message": f"the process left with exit code {exit_status} instead of returning"}


def _stack_text(frames: list[Frame]) -> str:
    shown = [frame for frame in frames[::-1] if not frame.in_kit]
    return "".join(f'  File "{frame.file}", line {frame.line}, in {frame.function}\n' for frame in shown)


def find_cause(reports: list[RankReport]) -> tuple[int, str]:
    """The causing rank, and in one sentence why it is that one.

    A failure of a rank's own comes before the echo it has in others (a lost peer, a wait in vain), the earlier before
    the later. Where nobody failed, the ranks disagree about a collective: the one that is behind, or the odd one out.
    """
    own = [report for report in reports if report.failed and report.state != "hung" and not report.lost_a_peer]
    if waiting_failed := [report for report in own if not report.timed_out]:
        own = waiting_failed
    elif own:  # only waits in vain: the ranks disagree, as in a deadlock
        return _odd_one_out(reports)
    if own:
        first = min(own, key=lambda report: (not report.vanished, report.finished or 0.0))
        return first.rank, ""
    if any(report.state == "hung" or report.timed_out for report in reports):
        return _odd_one_out(reports)
    return next(report.rank for report in reports if report.failed), ""


def _odd_one_out(reports: list[RankReport]) -> tuple[int, str]:
    """Who called something else, or nothing, where the others wait in a collective of their group."""
    waiting = [report for report in reports if report.failed]
    returned = [report for report in reports if not report.failed]
    collective = next((r.last_collective for r in waiting if r.last_collective and not _is_p2p(r)), None)
    if collective is None:
        return _outside_collectives(waiting, returned)
    members = [report for report in reports if report.rank in collective.ranks]
    newest = max(members, key=_sequence)
    behind = min(members, key=_sequence)
    if _sequence(behind) < _sequence(newest):
        verb = "is elsewhere" if behind.failed else "returned"
        return behind.rank, f"rank {behind.rank} {verb} without the call the others wait in: {newest.last_collective}"
    kinds = [_kind(report.last_collective) for report in members]
    odd = min(members, key=lambda report: (kinds.count(_kind(report.last_collective)), -report.rank))
    other = next((m for m in members if _kind(m.last_collective) != _kind(odd.last_collective)), None)
    if other is None:
        return waiting[0].rank, "all ranks wait in the same call"
    return odd.rank, f"rank {odd.rank} is in {odd.last_collective}, rank {other.rank} in {other.last_collective}"


def _outside_collectives(waiting: list[RankReport], returned: list[RankReport]) -> tuple[int, str]:
    """Ranks that wait for a message, or in something like `new_group` that others have not come to."""
    first = next((report for report in waiting if _is_p2p(report)), None)
    if first is not None:
        call = first.last_collective
        missing = "sent" if call.op == "recv" else "received"
        return first.rank, f"rank {first.rank} waits in {call}, which the other side never {missing}"
    first = waiting[0]
    place = first.inside or "a wait of its own"
    if returned:
        return returned[0].rank, f"rank {returned[0].rank} returned while rank {first.rank} waits in {place}"
    return first.rank, f"rank {first.rank} waits in {place}"


def _is_p2p(report: RankReport) -> bool:
    return report.last_collective is not None and report.last_collective.op in POINT_TO_POINT


def _sequence(report: RankReport) -> int:
    call = report.last_collective
    return call.sequence if call and not _is_p2p(report) else -1


def _kind(call: Call | None) -> tuple:
    return call.kind if call else ()


def _indented(text: str) -> str:
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines())
