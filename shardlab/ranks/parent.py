"""The warm parent: a process that has imported torch and does nothing but fork ranks.

It only *imports*. A tensor operation here would start OpenMP threads, a CUDA call a driver context; neither survives
a fork, and ranks would hang. One thread, one call at a time; it ends when its caller's end of the socket closes.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import sys
import tempfile
import threading
from functools import partial
from pathlib import Path

import torch

from shardlab.ranks.call_folder import Request
from shardlab.ranks.processes import adopt_orphans, guard_memory, kill_descendants
from shardlab.ranks.rank import rank_main
from shardlab.ranks.supervise import Pipes, Supervisor


def _import_what_ranks_need() -> None:
    """Seconds once, instead of seconds in every rank. torch._dynamo: the first optimiser step asks for it."""
    with tempfile.TemporaryDirectory() as folder:  # its import makes a cache folder, which nobody may ever need
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder
        import torch._dynamo
    del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    import torch.distributed._functional_collectives
    import torch.distributed.algorithms.join
    import torch.distributed.checkpoint
    import torch.distributed.device_mesh
    import torch.distributed.fsdp
    import torch.distributed.optim
    import torch.distributed.pipelining
    import torch.distributed.tensor.parallel
    import torch.nn.parallel
    import torch.optim
    import torch.utils.checkpoint  # noqa: F401


def _fork_rank(caller: socket.socket, request: Request, rank: int, pipes: Pipes) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        os.close(caller.fileno())  # what is said to the caller is the supervisor's alone
        os.close(pipes.hold)  # a copy in a rank would keep the others waiting
        os.close(pipes.doorbell)
        rank_main(request, rank, parent, pipes.ring, pipes.release)
    return pid


def _spawn_rank(request: Request, rank: int, pipes: Pipes) -> int:
    """A fresh interpreter: seconds instead of milliseconds, for systems where a forked torch is not safe."""
    line = Path(request.folder) / f"request-{rank}"
    line.write_bytes(request.to_line())
    for descriptor in (pipes.ring, pipes.release):
        os.set_inheritable(descriptor, True)
    arguments = [str(line), str(rank), str(os.getpid()), str(pipes.ring), str(pipes.release)]
    start = "from shardlab.ranks.rank import spawned_main; spawned_main()"
    return os.posix_spawn(sys.executable, [sys.executable, "-c", start, *arguments], os.environ)


def _can_fork() -> bool:
    """One thread only, as another may hold a lock that nobody in the child would ever release; and no CUDA driver yet.

    CUDA in the *caller* does no harm: this is another process.
    """
    tasks = Path("/proc/self/task")
    threads = len(list(tasks.iterdir())) if tasks.exists() else threading.active_count()
    return threads == 1 and not torch.cuda.is_initialized()


def _child_signals() -> int:
    """A descriptor that becomes readable when a child ends or stops."""
    receiver, sender = os.pipe()
    os.set_blocking(receiver, False)
    os.set_blocking(sender, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(sender, warn_on_full_buffer=False)
    return receiver


def main(descriptor: int, start_method: str) -> None:
    """Serve calls over the socket `descriptor`, a line of JSON each way, until it closes.

    Args:
        start_method: ``"fork"``, ``"spawn"`` or ``"auto"``: fork where this process has stayed single-threaded.
    """
    caller = socket.socket(fileno=descriptor)
    adopt_orphans()
    guard_memory(True)  # ranks are of the same user, and must not be able to change what is told of them
    child_signals = _child_signals()
    _import_what_ranks_need()
    fork = start_method == "fork" or (start_method == "auto" and _can_fork())
    start_rank = partial(_fork_rank, caller) if fork else _spawn_rank
    gc.collect()
    gc.freeze()  # what is here stays: a collection in a rank must not copy its pages
    try:
        with caller.makefile("rb") as requests:
            caller.sendall(json.dumps({"start_method": "fork" if fork else "spawn"}).encode() + b"\n")
            for line in requests:
                supervisor = Supervisor(Request.from_line(line), start_rank, caller, child_signals)
                caller.sendall(json.dumps(supervisor.run().to_data()).encode() + b"\n")
    except (BrokenPipeError, ConnectionResetError):  # the caller is gone: nobody to tell
        pass
    finally:
        kill_descendants()
        os._exit(0)  # tearing down all that was imported takes longer than many a call


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
