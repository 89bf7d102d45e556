"""A page of memory a rank shares with its supervisor: the last collective, readable even when the rank is stuck in C.

Written before each call (see `shardlab.observe.calls.listen`), read when the call of `run_ranks` has failed. A file
mapping, so that it works for forked and for spawned ranks and survives `kill -9`.
"""

from __future__ import annotations

import json
import mmap
import struct
from dataclasses import asdict
from pathlib import Path

from shardlab.observe.calls import Call
from shardlab.ranks.reading import read_regular

_SIZE = 16 * 1024
_LENGTH = struct.Struct("!I")


class StatusPage:
    """The rank's side: `note` is a listener for `shardlab.observe.calls.add_listener`."""

    def __init__(self, path: Path) -> None:
        with path.open("wb+") as file:
            file.truncate(_SIZE)
            self._memory = mmap.mmap(file.fileno(), _SIZE)

    def note(self, call: Call) -> None:
        text = json.dumps(asdict(call)).encode()
        if len(text) > _SIZE - _LENGTH.size:  # a group of thousands of ranks: the report can do without their names
            text = json.dumps({**asdict(call), "ranks": []}).encode()
        self._memory[: _LENGTH.size] = _LENGTH.pack(0)  # a reader must not see half of the new call
        self._memory[_LENGTH.size : _LENGTH.size + len(text)] = text
        self._memory[: _LENGTH.size] = _LENGTH.pack(len(text))


def read_last_call(path: Path) -> Call | None:
    """The last collective the rank noted before it began it; None: it made none."""
    try:
        page = read_regular(path, _SIZE) or b""
        (length,) = _LENGTH.unpack_from(page.ljust(_LENGTH.size, b"\0"))
        call = Call.from_data(json.loads(page[_LENGTH.size : _LENGTH.size + length])) if length else None
    except (ValueError, TypeError, KeyError, RecursionError):  # a rank wrote something else there
        return None
    return call if call is None or _is_plausible(call) else None


def _is_plausible(call: Call) -> bool:
    """Whether the fields that a report compares or prints are of their types."""
    numbers = (call.numel, call.sequence, call.line, *call.shape, *call.ranks, *filter(None, [call.peer]))
    return all(isinstance(number, int) for number in numbers) and all(
        isinstance(text, str) for text in (call.op, call.dtype, call.file)
    )
