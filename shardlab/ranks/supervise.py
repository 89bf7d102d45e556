"""The warm parent's part of one call: start the ranks, see what becomes of each, end them all.

It never imports the caller's code and never touches a tensor. What it learns (exit status, order of events, who was
stuck) goes back as a few numbers per rank; results, output and stacks are in the call's folder.
"""

from __future__ import annotations

import os
import select
import shutil
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from shardlab.ranks import processes
from shardlab.ranks.call_folder import Request
from shardlab.ranks.stack import ask_for_stack, read_stack, take_stacks

GRACE = 1.0  # seconds the other ranks get to report what they saw of a failure, before they are ended
TICK = 0.5  # seconds between looks at the CPU clocks
STALL = 4.0  # seconds without CPU time, all unfinished ranks waiting on a lock, that make a deadlock
STALL_BLIND = 10.0  # the same where the system does not tell what a process waits for
STACK_SECONDS = 3.0  # the longest a busy machine takes to run a signal handler
IDLE_SHARE = 0.03  # of a core: a blocked gloo rank uses 0.4 %, the polling of a FileStore 1-2 %


@dataclass(frozen=True, slots=True)
class Pipes:
    """Descriptors of the two pipes between supervisor and ranks.

    Ranks write a byte to `ring` when their outcome is there; the supervisor reads `doorbell`. The supervisor closes
    `hold` when every rank has returned; ranks wait for the end of `release`.
    """

    doorbell: int
    ring: int
    release: int
    hold: int

    @classmethod
    def open(cls) -> Pipes:
        pipes = cls(*os.pipe(), *os.pipe())
        os.set_blocking(pipes.doorbell, False)
        return pipes

    def close(self) -> None:
        for descriptor in (self.doorbell, self.ring, self.release, self.hold):
            os.close(descriptor)


StartRank = Callable[[Request, int, Pipes], int]  # -> process id


@dataclass
class Fate:
    """What became of one rank.

    Attributes:
        pid: process id.
        exit_status: as `os.waitstatus_to_exitcode` gives it (negative: the signal); None: it had to be ended.
        finished: when, on the monotonic clock, its result was there or it had ended; None: never.
        stopped: it was found stopped (SIGSTOP).
        stuck: it had not finished when the call was ended, and its stack was taken.
    """

    pid: int
    exit_status: int | None = None
    finished: float | None = None
    stopped: bool = False
    stuck: bool = False


@dataclass
class Ending:
    """How a call ended: ``"returned"``, ``"failed"``, ``"deadlock"``, ``"timeout"`` or ``"cancelled"``."""

    how: str
    fates: list[Fate] = field(default_factory=list)

    def to_data(self) -> dict:
        return asdict(self)

    @classmethod
    def from_data(cls, data: dict) -> Ending:
        return cls(data["how"], [Fate(**fate) for fate in data["fates"]])


class Supervisor:
    """One call of `run_ranks`, watched from start to end."""

    def __init__(self, request: Request, start_rank: StartRank, caller: socket.socket, child_signals: int) -> None:
        self.request = request
        self.folder = request.call_folder
        self._start_rank = start_rank
        self._caller = caller
        self._child_signals = child_signals  # readable when a child has ended or stopped
        self.fates: list[Fate] = []

    def run(self) -> Ending:
        """Start the ranks, wait for the end, leave nothing."""
        pipes = Pipes.open()
        try:
            for rank in range(self.request.ranks):
                self.fates.append(Fate(self._start_rank(self.request, rank, pipes)))
            how = self._watch(pipes.doorbell)
            if how != "returned":
                self._freeze()
        finally:
            pipes.close()
            self._end_ranks()
            self._remove_shared_memory()
        if how == "cancelled":  # the caller may be gone for good
            shutil.rmtree(self.folder.root, ignore_errors=True)
        return Ending(how, self.fates)

    def _watch(self, doorbell: int) -> str:
        """Wait for the call's end; how it came."""
        stall = _StallWatch()
        deadline = time.monotonic() + self.request.timeout
        grace_ends: float | None = None
        while True:
            self._look()
            if all(fate.finished is not None for fate in self.fates):
                return "failed" if any(self._failed(rank) for rank in range(len(self.fates))) else "returned"
            now = time.monotonic()
            if grace_ends is None and self._any_failed():
                grace_ends = now + GRACE
            if grace_ends is not None and now >= grace_ends:
                return "failed"
            if now >= deadline:
                return "timeout"
            if grace_ends is None and len(self.fates) > 1 and stall.is_deadlock(self._unfinished(), self.folder.stack):
                return "deadlock"
            wait = min(TICK, (grace_ends or deadline) - now, deadline - now)
            if self._wait(doorbell, max(wait, 0.0)):
                return "cancelled"

    def _wait(self, doorbell: int, seconds: float) -> bool:
        """Sleep until something happens; whether the caller has left or called off."""
        ready, _, _ = select.select([doorbell, self._child_signals, self._caller], [], [], seconds)
        for descriptor in (doorbell, self._child_signals):
            if descriptor in ready:
                os.read(descriptor, 4096)
        return self._caller in ready

    def _look(self) -> None:
        """Take in results that are there, and ranks that ended or stopped."""
        for rank, fate in enumerate(self.fates):
            if fate.finished is None and os.path.lexists(self.folder.result(rank)):  # a link leads anywhere
                fate.finished = time.monotonic()
            if fate.exit_status is None:
                self._look_at_process(fate)

    def _look_at_process(self, fate: Fate) -> None:
        pid, status = os.waitpid(fate.pid, os.WNOHANG | os.WUNTRACED)
        if pid == 0:
            return
        if os.WIFSTOPPED(status):
            fate.stopped = True
            return
        fate.exit_status = os.waitstatus_to_exitcode(status)
        fate.finished = fate.finished or time.monotonic()

    def _failed(self, rank: int) -> bool:
        """Whether the rank is known not to have returned: it ended, stopped, or wrote a result and went on to end."""
        fate = self.fates[rank]
        return fate.stopped or fate.exit_status is not None

    def _any_failed(self) -> bool:
        return any(self._failed(rank) for rank in range(len(self.fates)))

    def _unfinished(self) -> list[tuple[int, int]]:
        return [(rank, fate.pid) for rank, fate in enumerate(self.fates) if fate.finished is None]

    def _freeze(self) -> None:
        """Take the stack of every unfinished rank, then end it, before the others leave and it sees them go."""
        stuck = [(rank, fate) for rank, fate in enumerate(self.fates) if fate.finished is None]
        for _, fate in stuck:
            fate.stuck = True
            if not fate.stopped:  # a stopped process cannot answer
                ask_for_stack(fate.pid)
        deadline = time.monotonic() + STACK_SECONDS
        for rank, fate in stuck:
            if not fate.stopped:
                read_stack(self.folder.stack(rank), within=deadline - time.monotonic())
        for _, fate in stuck:
            processes.kill(fate.pid)

    def _end_ranks(self) -> None:
        """Returned ranks are leaving by themselves; whatever else is there is ended, with all it started."""
        leaving = time.monotonic() + 1.0
        for fate in self.fates:
            while fate.exit_status is None and fate.finished is not None and time.monotonic() < leaving:
                self._look_at_process(fate)
                if fate.exit_status is None:
                    select.select([self._child_signals], [], [], 0.01)
        processes.kill_descendants()

    def _remove_shared_memory(self) -> None:
        """What killed ranks left: Python's blocks and semaphores carry the call's name, torch's the process id."""
        prefix = self.folder.shared_memory_prefix
        for pattern in (f"{prefix}*", f"sem.{prefix}*", *(f"torch_{fate.pid}_*" for fate in self.fates)):
            for leftover in Path("/dev/shm").glob(pattern):
                leftover.unlink(missing_ok=True)


class _StallWatch:
    """Tells a deadlock from slow work: no CPU time for a while, and every unfinished rank waits on a lock."""

    def __init__(self) -> None:
        self._since = time.monotonic()
        self._used: dict[int, float] = {}

    def is_deadlock(self, unfinished: list[tuple[int, int]], stack_path: Callable) -> bool:
        now = time.monotonic()
        used = {pid: processes.cpu_seconds(pid) for _, pid in unfinished}
        elapsed = now - self._since
        if used.keys() != self._used.keys() or self._busy(used, elapsed):
            self._since, self._used = now, used
            return False
        if elapsed < STALL:
            return False
        waits = [self._waits(pid, stack_path(rank)) for rank, pid in unfinished]
        return all(waits) if None not in waits else elapsed >= STALL_BLIND

    def _busy(self, used: dict[int, float], elapsed: float) -> bool:
        return any(used[pid] - self._used[pid] > IDLE_SHARE * max(elapsed, 1.0) for pid in used)

    def _waits(self, pid: int, stack_path: Path) -> bool | None:
        """Whether a rank waits for others: some thread is in torch, or the main thread in a lock of torch's.

        A wait for a thread or a child of its own shows as a line of the standard library, a handle's `wait` as a line
        of the caller.
        """
        on_lock = processes.waits_on_lock(pid)
        stacks = take_stacks(pid, stack_path, STACK_SECONDS)
        if any(frames[0].in_torch for frames in stacks):
            return True
        if not stacks or any(frames[0].in_library for frames in stacks):
            return False
        return on_lock
