"""`HangWatch`: the collective calls of all ranks on one board, and a look at them when nothing moves any more.

What the calls mean is for the caller to say: `find_mismatch` and `find_slow` are handed in.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import asdict
from datetime import timedelta
from types import FrameType, TracebackType
from typing import Protocol

import torch.distributed as dist

from shardlab.observe.calls import LIBRARY_FOLDERS, POINT_TO_POINT, Call, listen, short_file

EXIT = "exit"  # the op of the last entry of a rank that has left the watched block
HANG_EXIT = 3  # exit code of a program that was ended
TICK = 0.2  # seconds between two looks at the clock
TELL_SECONDS = 2.0  # for the one rank that speaks, before the others end: their end may be its end
GOODBYE_SECONDS = 300.0  # a rank that is through, or held up, waits so long for the others

_watches = itertools.count()


class Mismatch(Protocol):
    """A rank that made another call than the `others`."""

    others: Sequence[int]


class Slow(Protocol):
    """A rank for which those in `waiting` wait."""

    rank: int
    waiting: Sequence[int]


class HangWatch:
    """Writes down every collective call inside a ``with`` block, and says who is to blame when nothing moves any more.

        with HangWatch(first_mismatch, slow_ranks, logging.getLogger("watch"), deadline=30):
            train()

    Every rank pins its calls to a board, the store of the default group, *before* it makes them: those that never
    return are there too. `dist.new_group` counts as a call of all ranks, with its members as the shape; leaving the
    block as a call `EXIT` of the rank alone. Sends and receives are not written down.

    A thread wakes up when its rank has made no call for `deadline` seconds, and reads everybody's calls. A mismatch is
    logged by one of the ranks that wait, and ends all of them with exit code `HANG_EXIT`. A slow rank is logged, with
    the line where it is, and waited for.

    The first rank to make the n-th call of a group also sets what that call has to be; a rank that comes with another
    one is held up *before* it runs. Else some backends would not hang: gloo adds up what it gets, or aborts.

    All ranks have to enter the block, and leave it together: who has gone cannot tell what it did. A call costs two
    messages to the store, which keeps them all: for the hunt, not for every day.

    Args:
        find_mismatch: from everybody's calls so far, who called something else than the others, or None.
        find_slow: the ranks that others wait for though nothing is wrong.
        log: where to say so.
        deadline: seconds without a call, after which to look.
        on_hang: called on every rank with the mismatch, instead of ending the process.

    Attributes:
        mismatch: what was found.
        slow: what this rank has reported, with the file and line where the slow rank was.
    """

    def __init__(
        self,
        find_mismatch: Callable[[list[list[Call]]], Mismatch | None],
        find_slow: Callable[[list[list[Call]]], Sequence[Slow]],
        log: logging.Logger,
        deadline: float,
        on_hang: Callable[[Mismatch], None] | None = None,
    ) -> None:
        self.mismatch: Mismatch | None = None
        self.slow: list[tuple[Slow, str, int]] = []
        self._find_mismatch, self._find_slow = find_mismatch, find_slow
        self._log, self._deadline, self._on_hang = log, deadline, on_hang or _end_process
        self._rank, self._ranks = dist.get_rank(), dist.get_world_size()
        self._board = dist.PrefixStore(f"hang-watch-{next(_watches)}", dist.group.WORLD.get_group_store()).clone()
        self._lock = threading.Lock()
        self._calls = 0
        self._calls_of_group: Counter[tuple[int, ...]] = Counter()
        self._last_call = time.monotonic()
        self._said: set[tuple[int, int]] = set()
        self._judged = threading.Event()
        self._over = threading.Event()

    def __enter__(self) -> HangWatch:
        self._watched_thread = threading.get_ident()
        board = self._board.clone()  # a store serves one thread at a time, and this one may be waiting in it
        self._thread = threading.Thread(target=self._watch, args=(board,), daemon=True)
        self._thread.start()
        self._listening = ExitStack()
        self._listening.enter_context(listen(self._note_collective))
        self._listening.enter_context(_seen_new_groups(self._note))
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._listening.close()
        reason = kind.__name__ if kind else "none"
        exit_call = Call.event(EXIT, (self._rank,), (), reason, *_stands_at(sys._getframe(1)))
        try:
            with suppress(dist.DistError) if error else nullcontext():  # without a board: `error` says more
                self._say_goodbye(exit_call, failed=error is not None)
        finally:
            self._over.set()
            self._thread.join()

    def _say_goodbye(self, exit_call: Call, failed: bool) -> None:
        self._note(exit_call)
        self._board.set(f"left/{self._rank}", "")
        if not failed:
            self._board.wait([f"left/{rank}" for rank in range(self._ranks)], timedelta(seconds=GOODBYE_SECONDS))
        elif not self._judged.is_set() and (mismatch := self._find_mismatch(read_calls(self._board, self._ranks))):
            self._log.error(str(mismatch))  # a peer that is gone shows as a lost connection: say why it is gone

    def _note_collective(self, call: Call) -> None:
        if call.op not in POINT_TO_POINT:
            self._note(call)

    def _note(self, call: Call) -> None:
        """Pin the call to the board; hold the rank up if another one has made another call in this place."""
        kind = str(call.kind)
        with self._lock:
            self._board.set(f"calls/{self._rank}/{self._calls}", json.dumps(asdict(call)))
            place = f"agreed/{call.ranks}/{self._calls_of_group[call.ranks]}"
            agreed = self._board.compare_set(place, "", kind).decode() == kind
            self._calls += 1
            self._calls_of_group[call.ranks] += 1
            self._last_call = time.monotonic()
        if not agreed:
            self._judged.wait(GOODBYE_SECONDS)
            raise RuntimeError(f"not run, as other ranks make another call here: {self.mismatch or call}")

    def _watch(self, board: dist.Store) -> None:
        try:
            while not self._over.wait(min(TICK, self._deadline / 4)) and not self._judged.is_set():
                frame = sys._current_frames().get(self._watched_thread)
                board.set(f"at/{self._rank}", json.dumps(_stands_at(frame)))
                if time.monotonic() - self._last_call >= self._deadline:
                    self._look(board)
        except dist.DistError:
            return  # the rank that keeps the store has gone, and with it everybody's notes

    def _look(self, board: dist.Store) -> None:
        calls = read_calls(board, self._ranks)
        if mismatch := self._find_mismatch(calls):
            self.mismatch = mismatch
            self._judged.set()
            if self._rank == mismatch.others[0]:
                self._log.error(str(mismatch))
                board.set("told", "")
            with suppress(dist.DistStoreError):
                board.wait(["told"], timedelta(seconds=TELL_SECONDS))
            self._on_hang(mismatch)
            return
        for slow in self._find_slow(calls):
            standstill = (slow.rank, len(calls[slow.rank]))
            if self._rank == slow.waiting[0] and standstill not in self._said:
                self._said.add(standstill)
                file, line = json.loads(board.get(f"at/{slow.rank}"))
                self.slow.append((slow, file, line))
                self._log.warning(f"{slow}; it is at {short_file(file)}:{line}")


def read_calls(board: dist.Store, ranks: int) -> list[list[Call]]:
    """Everybody's calls so far."""
    calls: list[list[Call]] = [[] for _ in range(ranks)]
    for rank, made in enumerate(calls):
        while board.check([key := f"calls/{rank}/{len(made)}"]):
            made.append(Call.from_data(json.loads(board.get(key))))
    return calls


@contextmanager
def _seen_new_groups(note: Callable[[Call], None]) -> Iterator[None]:
    """All ranks have to call `dist.new_group`, and it is no collective: a stand-in tells of it.

    Also where torch itself looks it up, as `dist.new_subgroups` does.
    """
    new_group, places = dist.new_group, (dist, dist.distributed_c10d)

    def told_new_group(ranks: Sequence[int] | None = None, *arguments: object, **options: object) -> object:
        world = tuple(range(dist.get_world_size()))
        note(Call.event("new_group", world, tuple(ranks or world), "none", *_stands_at(sys._getframe(1))))
        return new_group(ranks, *arguments, **options)

    for place in places:
        place.new_group = told_new_group
    try:
        yield
    finally:
        for place in places:
            place.new_group = new_group


def _stands_at(frame: FrameType | None) -> tuple[str, int]:
    """File and line of the innermost frame outside libraries and this file."""
    while frame is not None and frame.f_code.co_filename.startswith((*LIBRARY_FOLDERS, __file__)):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame is not None else ("", 0)


def _end_process(mismatch: Mismatch) -> None:
    """The main thread waits in a backend, where no exception reaches it."""
    sys.stdout.flush()
    os._exit(HANG_EXIT)
