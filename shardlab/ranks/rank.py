"""What one rank does, from its first moment to its last."""

from __future__ import annotations

import datetime
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cloudpickle
import torch
import torch.distributed as dist

from shardlab.not_attempted import NotAttempted
from shardlab.observe.calls import add_listener
from shardlab.ranks import wire
from shardlab.ranks.call_folder import CallFolder, Request
from shardlab.ranks.device import local_device
from shardlab.ranks.processes import die_with_parent, guard_memory
from shardlab.ranks.stack import Frame, dump_on_signal, user_frame
from shardlab.ranks.status_page import StatusPage


def rank_main(request: Request, rank: int, parent: int, ring: int, release: int) -> None:
    """Be rank `rank` of a call; never returns.

    Args:
        parent: process id of the supervisor.
        ring: file descriptor to write one byte to when the outcome is in its file.
        release: file descriptor that reads end-of-file once every rank has returned. Leaving earlier would close
            connections that a slower rank still reads from.
    """
    folder = request.call_folder
    process = os.getpid()
    try:
        _settle_in(request, rank, parent)
        outcome = _run(request, folder, rank)
        if os.getpid() != process:  # a child that the function forked and let return
            return
        _write_result(folder, rank, outcome)
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(ring, b".")
        if outcome["state"] == "returned":
            os.read(release, 1)
    finally:
        os._exit(0)  # no destructors, no atexit: what is left of this process is nobody's business any more


def _settle_in(request: Request, rank: int, parent: int) -> None:
    """Own session, own output, the caller's environment and paths."""
    die_with_parent(parent)
    guard_memory(False)  # the supervisor looks into /proc for what this rank waits in
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    folder = request.call_folder
    output = os.open(folder.output(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for target, source in ((0, null), (1, output), (2, output)):
        os.dup2(source, target)
    sys.stdout.reconfigure(line_buffering=True)  # what a rank printed before it was killed is worth the most
    dump_on_signal(folder.stack(rank))

    os.environ.update(request.environment)
    os.environ.update(_rank_variables(rank, request.ranks))
    os.environ["TMPDIR"] = tempfile.tempdir = str(folder.tmp)
    _name_shared_memory(folder)
    sys.path[:] = request.path
    if Path(request.working_folder).is_dir():
        os.chdir(request.working_folder)


def _rank_variables(rank: int, ranks: int) -> dict[str, str]:
    """The variables torchrun would set, and gloo on the loopback interface: no host name to look up."""
    return {
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo0" if sys.platform == "darwin" else "lo"),
    }


def _name_shared_memory(folder: CallFolder) -> None:
    from multiprocessing import current_process, shared_memory

    prefix = "/" + folder.shared_memory_prefix
    shared_memory._SHM_NAME_PREFIX = prefix
    current_process()._config["semprefix"] = prefix  # locks and semaphores


def _run(request: Request, folder: CallFolder, rank: int) -> dict[str, Any]:
    """Join the group, call the function; the outcome, as plain data."""
    try:
        add_listener(StatusPage(folder.status(rank)).note)
        function, arguments = cloudpickle.loads(folder.call.read_bytes())
        if folder.input(rank).exists():
            arguments = (cloudpickle.loads(folder.input(rank).read_bytes()), *arguments)
            folder.input(rank).unlink()  # before the group stands, so that no rank's function finds another's input
        torch.set_num_threads(1)
        _join(request, folder, rank)
        return {"state": "returned", "value": function(*arguments)}
    except BaseException as error:
        return _failure("raised", error)


def _join(request: Request, folder: CallFolder, rank: int) -> None:
    """Initialise the default group. Its timeout lies behind the call's: the supervisor's report says more."""
    device = local_device(request.backend, rank, request.ranks)
    os.environ["SHARDLAB_DEVICE"] = str(device)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    dist.init_process_group(
        request.backend or ("nccl" if device.type == "cuda" else "gloo"),
        store=dist.FileStore(str(folder.store), request.ranks),
        rank=rank,
        world_size=request.ranks,
        timeout=datetime.timedelta(seconds=request.timeout + 60),
    )


def _failure(state: str, error: BaseException) -> dict[str, Any]:
    frames = [Frame(f.filename, f.lineno or 0, f.name) for f in traceback.extract_tb(error.__traceback__)]
    where = user_frame(frames[::-1])
    kind = type(error)
    return {
        "state": state,
        "error_type": kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}",
        "message": _shown(lambda: str(error)),
        "exercise": error.exercise if isinstance(error, NotAttempted) else None,
        "traceback": _shown(lambda: _user_traceback(error)),
        "file": where.file if where else "",
        "line": where.line if where else 0,
    }


def _shown(text: Callable[[], str]) -> str:
    """A text of an exception; its ``__str__`` and notes are code too, and may fail."""
    try:
        return text()
    except Exception as error:
        return f"(it cannot be shown: {type(error).__name__})"


def _user_traceback(error: BaseException) -> str:
    """The traceback from the caller's function on; the machinery above it tells nothing."""
    shown = traceback.TracebackException.from_exception(error)
    while len(shown.stack) > 1 and Frame(shown.stack[0].filename, 0, "").in_kit:
        shown.stack.pop(0)
    return "".join(shown.format())


def _write_result(folder: CallFolder, rank: int, outcome: dict[str, Any]) -> None:
    """Whole or not at all: a rank killed while writing leaves no result."""
    try:
        message = wire.encode({**outcome, "finished": time.monotonic()})
    except Exception as error:  # besides UnsendableError: nested without end, or numbers too long to write
        outcome.clear()
        outcome.update(_failure("unsendable", error))
        message = wire.encode({**outcome, "finished": time.monotonic()})
    partial = folder.root / f"partial-{rank}"
    partial.write_bytes(message)
    partial.rename(folder.result(rank))


def spawned_main() -> None:
    """Entry of a spawned rank. Arguments: file with the request, rank, parent, ring, release."""
    request, *numbers = sys.argv[1:]
    rank_main(Request.from_line(Path(request).read_bytes()), *map(int, numbers))
