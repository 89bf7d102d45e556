"""`run_ranks` and `RankPool`: the caller's side."""

from __future__ import annotations

import atexit
import contextlib
import json
import math
import os
import shutil
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from shardlab.not_attempted import NotAttempted
from shardlab.ranks.call_folder import CallFolder, Request
from shardlab.ranks.enclosure import Enclosure
from shardlab.ranks.processes import TAG
from shardlab.ranks.report import RankError, RankReport, build_reports, find_cause
from shardlab.ranks.sending import to_bytes
from shardlab.ranks.supervise import Ending

START_METHODS = ("fork", "spawn")
IMPORT_SECONDS = 120.0  # the longest a cold disk may take to import torch
SUPERVISOR_SECONDS = 60.0  # after a call's own deadline, by which the warm parent has ended it and answered
LINE_BYTES = 1 << 20  # the longest answer of a warm parent


class PoolError(RuntimeError):
    """The warm parent of the ranks does not do its part: it has ended, does not answer, or answers nonsense."""


def run_ranks(
    fn: Callable[..., Any],
    ranks: int,
    *args: Any,
    per_rank: Sequence[Any] | None = None,
    timeout: float = 30,
    backend: str | None = None,
) -> list[Any]:
    """Run `fn` on `ranks` fresh processes that form one process group; the results, in rank order.

        >>> from shardlab.ranks import run_ranks
        >>> def add_up(value):
        ...     tensor = torch.tensor(value)
        ...     dist.all_reduce(tensor)
        ...     return tensor.item()
        >>> run_ranks(add_up, 3, per_rank=[1.0, 2.0, 3.0])
        [6.0, 6.0, 6.0]

    Args:
        fn: any function, also one from a notebook cell. Ranks are forked from a process that has imported torch:
            they share nothing with the caller and see an edited module's newest version.
        ranks: how many, from 1 up.
        args: arguments, the same on every rank.
        per_rank: a first argument for each rank.
        timeout: seconds the call may take. A deadlock is found within seconds, whatever this says.
        backend: ``"gloo"`` or ``"nccl"``; None: NCCL where every rank has a GPU, else gloo.

    Returns:
        What `fn` returned on each rank: plain data (numbers, strings, tensors, lists, dicts, dataclasses as `Record`).

    Raises:
        RankError: a rank raised, exited, was killed or stopped, hung, or returned something else than plain data.
        NotAttempted: a rank came upon an exercise nobody has written yet.
        ValueError: bad arguments.
    """
    return _default_pool().run(fn, ranks, *args, per_rank=per_rank, timeout=timeout, backend=backend)


_pool: RankPool | None = None


def _default_pool() -> RankPool:
    global _pool
    if _pool is None:
        _pool = RankPool()
    return _pool


@contextlib.contextmanager
def all_ranks_on(pool: RankPool) -> Iterator[None]:
    """Inside the block `run_ranks` runs on `pool`: for whoever grades with tests that know nothing of sandboxes."""
    global _pool
    before, _pool = _pool, pool
    try:
        yield
    finally:
        _pool = before


class RankPool:
    """A warm parent process of one's own, started on the first call and ended by `close`.

    Args:
        path: folders to put first on the ranks' sys.path, such as a submission's workspace.
        start_method: ``"fork"`` (milliseconds per rank) or ``"spawn"`` (seconds; where fork is unsafe). None: fork,
            unless the warm parent turned out to have threads. The environment variable SHARDLAB_START_METHOD sets
            the default, for a macOS whose system libraries do not survive a fork.
        enclosure: where the warm parent and its ranks live; None: beside the caller, whose environment they share.
    """

    def __init__(
        self, path: Sequence[str | Path] = (), start_method: str | None = None, enclosure: Enclosure | None = None
    ) -> None:
        start_method = start_method or os.environ.get("SHARDLAB_START_METHOD") or None
        if start_method not in (None, *START_METHODS):
            raise ValueError(f"start_method is {start_method!r}; it can be 'fork' or 'spawn'")
        self._path = [str(Path(folder).resolve()) for folder in path]
        self._asked_start_method = start_method or "auto"
        self._enclosure = enclosure
        self._parent: subprocess.Popen | None = None
        self._socket: socket.socket | None = None
        self._lock = threading.Lock()
        self.start_method: str | None = None

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(
        self,
        fn: Callable[..., Any],
        ranks: int,
        *args: Any,
        per_rank: Sequence[Any] | None = None,
        timeout: float = 30,
        backend: str | None = None,
    ) -> list[Any]:
        """Like `run_ranks`, on this pool."""
        _check(fn, ranks, per_rank, timeout, backend)
        with self._lock, _call_folder(self._enclosure.calls if self._enclosure else None) as folder:
            _write_inputs(folder, fn, args, per_rank)
            if self._enclosure:
                self._enclosure.give(folder.root, *folder.root.iterdir())
            ending = self._ask(self._request(folder, ranks, timeout, backend))
            reports, values = build_reports(folder, ending)
        if any(report.failed for report in reports):
            _raise(ending.how, reports)
        for report in reports:
            _print_output(report)
        return values

    def _request(self, folder: CallFolder, ranks: int, timeout: float, backend: str | None) -> Request:
        place = self._enclosure
        return Request(
            folder=str(folder.root),
            ranks=ranks,
            timeout=timeout,
            backend=backend,
            path=[*self._path, *(place.path if place else ()), *(entry or str(Path.cwd()) for entry in sys.path)],
            environment=dict(place.environment if place else os.environ),
            working_folder=place.working_folder if place else str(Path.cwd()),
        )

    def _ask(self, request: Request) -> Ending:
        """Hand the request to the warm parent and wait for the end of the call."""
        if self._parent is None or self._parent.poll() is not None:
            self._start()
        try:
            self._socket.settimeout(request.timeout + SUPERVISOR_SECONDS)
            self._socket.sendall(request.to_line())
            return self._ending(request.ranks)
        except OSError as error:
            self.close()
            raise PoolError(f"the ranks' warm parent does not answer ({error}); the next call starts one") from error
        except BaseException:  # Ctrl-C, or the parent is gone: closing the socket ends the call and everything in it
            self.close()
            raise

    def _ending(self, ranks: int) -> Ending:
        answer = self._receive()
        try:
            ending = Ending.from_data(answer)
        except (TypeError, KeyError) as error:
            raise PoolError(f"the warm parent of the ranks answers nonsense: {error}") from error
        if len(ending.fates) != ranks:
            raise PoolError(f"the warm parent of the ranks tells of {len(ending.fates)} ranks instead of {ranks}")
        return ending

    def _receive(self) -> dict[str, Any]:
        line = b""
        while not line.endswith(b"\n"):
            part = self._socket.recv(1 << 16)
            if not part or len(line) > LINE_BYTES:
                raise PoolError("the warm parent of the ranks has ended; the next call starts a new one")
            line += part
        try:
            return json.loads(line)
        except (ValueError, RecursionError) as error:
            raise PoolError(f"the warm parent of the ranks answers nonsense: {error}") from error

    def _start(self) -> None:
        self.close()
        self._socket, theirs = socket.socketpair()
        with theirs:
            place = self._enclosure
            command = [sys.executable, "-m", "shardlab.ranks.parent", str(theirs.fileno()), self._asked_start_method]
            for descriptor in place.descriptors if place else ():
                os.lseek(descriptor, 0, os.SEEK_SET)  # the parent before this one read it to its end
            self._parent = subprocess.Popen(
                [*place.enter, *command] if place else command,
                pass_fds=[theirs.fileno(), *(place.descriptors if place else ())],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C in a terminal is for the caller, who then ends the ranks
                env={**(place.environment if place else os.environ), **_PARENT_VARIABLES, TAG: uuid.uuid4().hex},
            )
        atexit.register(self.close)
        self._socket.settimeout(IMPORT_SECONDS)
        self.start_method = self._receive()["start_method"]

    def close(self) -> None:
        """End the warm parent and whatever it has running. The pool can be used again."""
        if self._socket is not None:
            self._socket.close()
        if self._parent is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._parent.wait(15)
            self._parent.kill()
            self._parent.wait()
            atexit.unregister(self.close)
        self._socket = self._parent = None


# Threads started at import would make a fork unsafe. Objective-C's own check would abort forked children on macOS.
_PARENT_VARIABLES = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "VECLIB_MAXIMUM_THREADS": "1",
    "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES",
}


def _check(
    fn: Callable[..., Any], ranks: int, per_rank: Sequence[Any] | None, timeout: float, backend: str | None
) -> None:
    if not callable(fn):
        raise ValueError(f"run_ranks needs a function to run, not {fn!r}")
    if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
        raise ValueError(f"run_ranks needs a number of ranks from 1 up, not {ranks!r}")
    if per_rank is not None and len(per_rank) != ranks:
        raise ValueError(f"per_rank has {len(per_rank)} items for {ranks} ranks: give one for each rank")
    if not isinstance(timeout, int | float) or not 0 < timeout < math.inf:
        raise ValueError(f"timeout is {timeout!r} seconds: give a positive number")
    if backend not in (None, "gloo", "nccl"):
        raise ValueError(f"backend is {backend!r}; it can be 'gloo', 'nccl' or None")


def _write_inputs(
    folder: CallFolder, fn: Callable[..., Any], args: Sequence[Any], per_rank: Sequence[Any] | None
) -> None:
    folder.call.write_bytes(to_bytes((fn, args)))
    for rank, item in enumerate(per_rank or ()):
        folder.input(rank).write_bytes(to_bytes(item))


@contextlib.contextmanager
def _call_folder(parent: Path | None) -> Iterator[CallFolder]:
    """The folder of a call, gone afterwards."""
    folder = CallFolder.create(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder.root, ignore_errors=True)


def _raise(how: str, reports: list[RankReport]) -> None:
    cause, diagnosis = find_cause(reports)
    if reports[cause].exercise is not None:
        missing = NotAttempted(reports[cause].exercise)
        missing.add_note(f"open {reports[cause].where}")
        raise missing
    for report in reports:
        _print_output(report)
    raise RankError(how, cause, reports, diagnosis)


def _print_output(report: RankReport) -> None:
    for line in report.output.splitlines():
        print(f"[rank {report.rank}] {line}")
