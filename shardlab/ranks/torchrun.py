"""The frame of every script: the same file runs under plain `python`, torchrun, Slurm's srun + torchrun."""

from __future__ import annotations

import datetime
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist

from shardlab.not_attempted import NotAttempted
from shardlab.ranks.device import local_device
from shardlab.ranks.processes import die_with_parent

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, slots=True)
class TorchrunRank:
    """Who this process is.

    Attributes:
        rank: from 0 to `world_size` - 1.
        world_size: number of ranks.
        device: where it computes.
    """

    rank: int
    world_size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """Rank 0, the one that prints and writes results."""
        return self.rank == 0


@contextmanager
def torchrun_ranks(timeout: float = 60, backend: str | None = None) -> Iterator[TorchrunRank]:
    """Join the process group torchrun describes, or be the only rank under plain `python`.

        with torchrun_ranks() as me:
            total = torch.ones(1, device=me.device)
            dist.all_reduce(total)
            if me.is_main:
                print(total.item())

    The group is destroyed at the end, also after an error. Ctrl-C ends with exit code 130 and one line; a lab nobody
    has written yet with exit code 2 and the file to open; both without a traceback.

    Args:
        timeout: seconds a collective may wait for other ranks.
        backend: ``"gloo"``, ``"nccl"`` or None: NCCL where every local rank has a GPU, else gloo.

    Raises:
        RuntimeError: some of torchrun's variables are set and others are missing.
    """
    with clean_end():
        me = _join(timeout, backend)
        try:
            yield me
        finally:
            dist.destroy_process_group()


@contextmanager
def clean_end() -> Iterator[None]:
    """Ctrl-C ends a script with exit code 130, a lab not written or a file in the way with 2; all with one line.

    A rank ends with its torchrun, also when that is killed and cannot tell it (Linux): else it would train on alone.
    Part of `torchrun_ranks`; on its own for scripts that join the ranks in another way.
    """
    if "TORCHELASTIC_RUN_ID" in os.environ:
        die_with_parent(os.getppid())
    try:
        yield
    except KeyboardInterrupt:
        _leave("stopped by Ctrl-C", 130)
    except NotAttempted as missing:
        _leave(_where_to_write(missing), 2)
    except (PermissionError, FileExistsError, NotADirectoryError) as error:
        _leave(f"{error.filename} cannot be written ({error.strerror}): run from a folder of your own", 2)


def _join(timeout: float, backend: str | None) -> TorchrunRank:
    given = [name for name in _NEEDED if name in os.environ]
    missing = [name for name in _NEEDED if name not in os.environ]
    if given and missing:
        raise RuntimeError(
            f"{', '.join(given)} set but not {', '.join(missing)}: start the script with torchrun, or with none of them"
        )
    rank, world_size, local_rank = (int(os.environ.get(name, default)) for name, default in _ALONE)
    device = local_device(backend, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))
    if device.type == "cuda":
        torch.cuda.set_device(device)
    os.environ["SHARDLAB_DEVICE"] = str(device)
    dist.init_process_group(
        backend or ("nccl" if device.type == "cuda" else "gloo"),
        store=None if given else dist.HashStore(),
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=timeout),
    )
    dist.barrier()  # a rank with nothing to do may leave at once, and must not be gone before its peers have connected
    return TorchrunRank(rank, world_size, device)


_ALONE = (("RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_RANK", "0"))


def _where_to_write(missing: NotAttempted) -> str:
    """The line of the lab that raised: the innermost frame of the traceback."""
    trace = missing.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    lab = os.path.relpath(trace.tb_frame.f_code.co_filename) if trace else "the lab"
    return f"exercise {missing.exercise} is not attempted yet: open {lab}"


def _leave(message: str, exit_code: int) -> None:
    """One line from one rank, then out. Not sys.exit: a peer may be stuck in a collective with us."""
    if os.environ.get("RANK", "0") == "0":
        print(message, file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exit_code)
