"""Lesson 1.4: launch, rank by rank.

A distributed program is N ordinary processes that run the same file. What makes them ranks is a handful of environment
variables from a launcher, one address where they meet, and the promise that all of them make the same collective calls
in the same order. A launcher that sets half of it, an address nobody answers and one rank that breaks the promise all
look alike: nothing happens, for 30 minutes. Here you write the pieces that turn each silence into one sentence.

Work from top to bottom: who am I (`expand_nodelist`, `find_launcher`, `meeting_point`, `Environment.from_env`), joining
the others (`meet`, `connect`, `make_groups`), telling ranks apart (`write_lines`, `rank_logger`), equal or different on
purpose (`seed_everything`, `assert_same_on_all_ranks`), and the detective (`replay`, `first_mismatch`, `slow_ranks`),
whom `HangWatch` asks when a rank has stood still for too long. Bad input raises `ValueError` before any communication,
and no wait is without a deadline. At the end of the file stands what is given.

Sources:
    PyTorch, "torchrun (Elastic Launch)": the variables a worker finds, --standalone, --rdzv-*, --max-restarts.
    Slurm, man page of srun, "OUTPUT ENVIRONMENT VARIABLES". Open MPI 4.1, man page of mpirun, "Exported Environment".
    PyTorch, "Distributed communication package": TCPStore, new_group, monitored_barrier, debugging.
    PyTorch tutorial, "Flight Recorder for Debugging Stuck Jobs": what you write here, grown up, for NCCL.
"""

from __future__ import annotations

import hashlib
import itertools
import logging
import math
import os
import random
import re
import select
import time
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import ProcessGroup, Store

from shardlab import NotAttempted
from shardlab.observe import Call, HangWatch
from shardlab.observe.calls import short_file
from shardlab.observe.hang_watch import EXIT
from shardlab.ranks import all_gather_single, device


class Launcher(NamedTuple):
    """A launcher: what its variables are called, and how it is used.

    Attributes:
        rank, world_size, local_rank: names of variables that each of its processes has.
        signs: variables that are there only in a process the launcher has started.
    """

    name: str
    rank: str
    world_size: str
    local_rank: str
    signs: tuple[str, ...]
    command: str


TORCHRUN = Launcher(
    "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", ("RANK", "WORLD_SIZE", "LOCAL_RANK"), "torchrun --nproc-per-node N"
)
OPEN_MPI = Launcher(
    "Open MPI",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mpirun -np N",
)
SLURM = Launcher(  # a shell inside `salloc` has SLURM_NTASKS too, but is no task
    "Slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ("SLURM_PROCID", "SLURM_LOCALID"), "srun --ntasks N"
)
LAUNCHERS = (TORCHRUN, OPEN_MPI, SLURM)

LINGER_SECONDS = 5.0
PORTS = range(10_000, 30_000)  # below those the kernel hands out for outgoing connections (Linux: from 32,768)

# --- Who am I? --------------------------------------------------------------------------------------------------------


def expand_nodelist(nodelist: str) -> list[str]:
    """The hosts in Slurm's short notation, in order.

    Args:
        nodelist: names with commas between; brackets hold numbers and ranges, and a name can have several.

    Raises:
        ValueError: a name or a number that is empty, brackets that do not close or hold something else, or a range that
            counts down.

    Example: ``"gpu[08-10,12],login"`` is gpu08, gpu09, gpu10, gpu12 and login: leading zeros stay.
    ``"r[0-1]n[1-2]"`` is r0n1, r0n2, r1n1, r1n2.

    Hints:
        1. Commas inside brackets separate numbers, commas outside separate names. Cut outside first.
        2. `re.fullmatch` with `NODELIST`, which is given; `re.findall` for "neither , nor [, or a whole [...]";
           `re.split` at the brackets; `numbers`; `itertools.product`.
    """
    raise NotAttempted("1.4 expand_nodelist")


def find_launcher(env: Mapping[str, str]) -> Launcher | None:
    """Who started this process; None: nobody, it is a program of its own.

    A launcher is there if any of its ``signs`` is set. torchrun may have been started by srun or mpirun, once per node;
    then their variables describe torchrun, not its workers. It marks its workers with ``TORCHELASTIC_RUN_ID``. In the
    same way mpirun may have been started in a batch script of Slurm, which is task 0: where there is Open MPI,
    ``SLURM_PROCID=0`` describes the script.

    Args:
        env: environment variables.

    Raises:
        ValueError: a launcher is there but one of ``rank``, ``world_size`` and ``local_rank`` is missing; or two are
            there and disagree about rank or world size. The message has the variables, and what to do: Open MPI and
            Slurm start what they mark, and torchrun's variables without its mark are somebody's export.

    Example: ``{"SLURM_PROCID": "1", "SLURM_LOCALID": "1"}`` raises "... SLURM_NTASKS is missing ...".

    Hints:
        1. Three questions, in this order: whose variables describe somebody else? Which launchers are there, complete?
           Do they agree?
        2. A set of (rank, world size) has more than one element when they do not.
    """
    raise NotAttempted("1.4 find_launcher")


def meeting_point(env: Mapping[str, str], launcher: Launcher) -> tuple[str, int]:
    """Where the ranks of this job meet: an address that all of them can reach, and a port on it.

    ``MASTER_ADDR`` and ``MASTER_PORT`` decide where they are set; torchrun always sets them. Otherwise every rank has
    to come to the *same* answer by itself, and the ranks of another job on this machine to another one:

    - Slurm: the first host of ``SLURM_STEP_NODELIST``, else ``SLURM_JOB_NODELIST``, else ``SLURM_NODELIST``. The port
      is number 8 x job + step of `PORTS`, counted on from the beginning after the end (``SLURM_JOB_ID``, else
      ``SLURM_JOBID``; ``SLURM_STEP_ID``, else 0).
    - Open MPI: ``127.0.0.1`` if all ranks are on this machine (``OMPI_COMM_WORLD_LOCAL_SIZE``), else nobody knows. The
      port is number CRC-32 of ``PMIX_NAMESPACE``, which names this mpirun, in the same way.

    Raises:
        ValueError: something needed is missing or no whole number. The message names the variable, and what to do.

    Example: Slurm job 7001, step 0, on ``"gpu[3-4]"``: ``("gpu3", 26008)``.

    Hints:
        1. Why not any free port? Who would tell the others?
        2. `value` and `whole_number` take several names and raise the error; ``zlib.crc32(text.encode())``; ``%``.
    """
    raise NotAttempted("1.4 meeting_point")


@dataclass(frozen=True)
class Environment:
    """Who this process is, whoever started it.

    Attributes:
        launcher: ``"torchrun"``, ``"Slurm"``, ``"Open MPI"``, or ``"python"`` for a program of its own.
        rank, world_size: which of all processes, counted from 0, and how many there are.
        local_rank, local_world_size: the same among those on this machine: the number of its GPU.
        master_address, master_port: where all ranks meet; port 0: any that is free, for a rank that is alone.
        attempt: how often torchrun has restarted the job.
        agent_has_store: the store at that address belongs to torchrun; otherwise rank 0 opens it.
    """

    launcher: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    master_address: str
    master_port: int
    attempt: int = 0
    agent_has_store: bool = False

    @classmethod
    def from_env(cls, env: Mapping[str, str] = os.environ) -> Environment:
        """Read it from the variables of a launcher; without any, this is rank 0 of 1, at 127.0.0.1 and port 0.

        Args:
            env: environment variables.

        Raises:
            ValueError: see `find_launcher` and `meeting_point`; a number is none; or numbers contradict each other: a
                rank outside the world, a local rank outside the ranks of this machine, more ranks here than in all, a
                port outside 1 to 65,535. The message has the variables with their values.

        Example: ``{"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODELIST": "gpu[3-4]",
        "SLURM_JOB_ID": "7001"}`` is rank 3 of 4, local rank 1 of 2, at gpu3:26008.

        Hints:
            1. Most is done. A wrong number is worse than a missing one: rank 4 of 4 waits for a rank that never comes.
            2. `whole_number`, `ranks_here`; ``TORCHELASTIC_RESTART_COUNT`` and ``TORCHELASTIC_USE_AGENT_STORE``
               (``"True"``) may be missing.
        """
        raise NotAttempted("1.4 Environment.from_env")

    def variables(self) -> dict[str, str]:
        """The same in torchrun's words, which libraries look for whoever the launcher was."""
        return {
            "RANK": str(self.rank),
            "WORLD_SIZE": str(self.world_size),
            "LOCAL_RANK": str(self.local_rank),
            "LOCAL_WORLD_SIZE": str(self.local_world_size),
            "MASTER_ADDR": self.master_address,
            "MASTER_PORT": str(self.master_port),
        }


# --- Joining the others -----------------------------------------------------------------------------------------------


def meet(environment: Environment, timeout: float) -> Store:
    """Open the store at the meeting point, or reach the one that is open, and wait until every rank is there.

    A store is a dictionary behind a port: all ranks read and write it, and can wait for a key. `init_process_group`
    exchanges addresses through it. Nobody would say who did not come, so call the roll first: each rank leaves a key.

    Args:
        environment: rank 0 opens the store, unless ``agent_has_store``. The store ends with rank 0; so when ranks are
            missing, rank 0 stays until those who came know it too, for at most `LINGER_SECONDS`.
        timeout: seconds for all of it.

    Returns:
        The store, with a key prefix of this ``attempt``: what ranks of the attempt before have left there would be
        taken for addresses of today. (torch 2.13 itself falls for that; see TORCH_DISABLE_SHARE_RDZV_TCP_STORE.)

    Raises:
        TimeoutError: not everybody came. The message has address and port, how many of how many came, and which ranks
            are missing; a rank that finds no store only knows that it was alone.
        ConnectionError: rank 0 cannot open the store, since its port is taken; or rank 0 has gone while others waited.

    Example: 4 ranks, two of which never start: "2 of 4 ranks came to gpu3:26008 within 60 s; missing: 1, 3".

    Hints:
        1. Whom does a rank ask that finds nobody at the address? Nobody: so there are two kinds of messages.
        2. `dist.TCPStore` with ``is_master``, ``timeout`` and ``wait_for_workers=False``; `dist.PrefixStore`;
           ``store.set``, ``store.wait(keys, timedelta)``, ``store.check``. `dist.DistNetworkError` is a lost or refused
           connection, `dist.DistStoreError` a wait in vain.
    """
    raise NotAttempted("1.4 meet")


@contextmanager
def connect(environment: Environment, timeout: float = 60.0) -> Iterator[ProcessGroup]:
    """Be a rank: join the default process group, and leave it at the end, also after an error.

        with connect(Environment.from_env(), timeout=60):
            train()

    Meanwhile the environment is in ``os.environ`` in torchrun's words, so that `device` and other libraries find it;
    whatever happens, not afterwards, as the next `Environment.from_env` would take it for a launcher's. A rank with a
    GPU computes on it (`torch.cuda.set_device`) and talks over NCCL, else over gloo.

    Args:
        environment: who this process is.
        timeout: seconds for everybody to come, and that any collective may take. torch's own: 30 minutes for gloo.

    Yields:
        The default group.

    Raises:
        ValueError: ``timeout`` is not positive.
        TimeoutError, ConnectionError: see `meet`.

    Hints:
        1. In which order do variables, device, store and group have to come?
        2. ``environment.variables()`` and `exported`, `device`, `meet`; `dist.init_process_group` with ``store``,
           ``rank``, ``world_size`` and ``timeout``; ``try ... finally`` around ``yield``.
    """
    raise NotAttempted("1.4 connect")


def make_groups(layout: Mapping[str, int], timeout: float = 60.0) -> dict[str, ProcessGroup]:
    """Arrange the ranks in a grid and make a process group of every line of it; this rank's own, by dimension.

    Args:
        layout: size of each dimension, slowest first: neighbours in the last one are consecutive ranks, which are on
            one machine. The sizes multiply to the world size.
        timeout: seconds a collective of a group may take. `new_group` does not take it over from the default group.

    Raises:
        ValueError: no dimension, a size below 1, or a product that is not the world size; before any group is made.

    *Every* rank makes *every* group, also those it is not in, in the same order: dimension by dimension, in each by
    lowest rank. One rank that makes two groups the other way round hangs all.

    Example, ``{"dp": 2, "tp": 2}`` on 4 ranks: (0, 2), (1, 3), then (0, 1), (2, 3). Rank 3 gets (1, 3) and (2, 3).

    Hints:
        1. Draw the ranks as a grid, ``torch.arange(world).reshape(sizes)``. A group of a dimension is what one sees
           looking along its axis.
        2. ``movedim``, ``reshape(-1, size)``, ``tolist``; `dist.new_group`.
    """
    raise NotAttempted("1.4 make_groups")


# --- Telling ranks apart ----------------------------------------------------------------------------------------------


def write_lines(prefix: str, text: str, descriptor: int = 2) -> None:
    """Write each line of a text with a prefix, so that no other process can come in between.

    Ranks share one terminal, pipe or file. The kernel keeps one ``write`` of up to `select.PIPE_BUF` bytes in one piece
    (POSIX, "write"; 4,096 on Linux); two writes for one line, which is what `print` may do, are two pieces.

    Args:
        prefix: at the start of every line.
        text: one or more lines. A line that does not fit into one write goes on in the next one, after the prefix. What
            UTF-8 cannot say, such as the half of a surrogate pair in a broken file name, becomes ``?``.
        descriptor: of the open file; 2 is stderr.

    Raises:
        ValueError: the prefix leaves no room for a letter, which can have 4 bytes.

    Example: ``write_lines("[rank 1] ", "two\nlines")`` makes two calls of ``os.write``, the first with
    ``b"[rank 1] two\n"``.

    Hints:
        1. How many bytes does a letter have in UTF-8? Where must a long line not be cut?
        2. `os.write`; ``bytes.decode(errors="ignore")`` drops half a letter at the end,
           ``str.encode(errors="replace")`` knows no letter that it cannot write.
    """
    raise NotAttempted("1.4 write_lines")


def rank_logger(name: str) -> logging.Logger:
    """A logger whose lines say which rank wrote them: ``[rank 1] train: step 3``. Levels from INFO up, to stderr.

    Args:
        name: of the logger, as for `logging.getLogger`. Asking twice gives the same logger, and still one line each.

    Hints:
        1. `logging.getLogger` keeps what it made. What happens to a message that has two handlers, or a parent?
        2. `RankHandler` is given; ``propagate``, ``setLevel``, ``handlers``.
    """
    raise NotAttempted("1.4 rank_logger")


# --- Equal or different, on purpose -----------------------------------------------------------------------------------


def seed_everything(seed: int, rank: int, per_rank: bool = False) -> None:
    """Start the random numbers of Python, numpy and torch (CPU and GPUs) anew.

    Before the model is built all ranks need the *same* numbers: equal weights without a broadcast. Before training each
    needs its *own*: else all ranks drop the same neurons and augment their images alike, and N ranks see less
    randomness than one.

    Args:
        seed: of the run, at least 0.
        rank: of this process, at least 0.
        per_rank: numbers of this rank's own. ``seed + rank`` will not do: seed 1 on rank 0 would be seed 0 on rank 1,
            and two runs that should be independent share most of their numbers.

    Raises:
        ValueError: seed or rank is negative.

    Example: ``seed_everything(7, rank); build(); seed_everything(7, rank, per_rank=True); train()``.

    Hints:
        1. You need a function of two numbers that mixes well. numpy has one for exactly this.
        2. `numpy.random.SeedSequence` with ``spawn_key``, ``generate_state``; `torch.manual_seed` does the GPUs too.
    """
    raise NotAttempted("1.4 seed_everything")


def digest(tensor: Tensor) -> Tensor:
    """`DIGEST_BYTES` bytes that stand for a tensor of any size: equal for equal tensors, different for different ones.

    The first 16 are a checksum of dtype, shape and elements, the other 48 say dtype and shape for a reader, such as
    ``float32[3, 4]``, cut off or filled with zero bytes.

    Args:
        tensor: any shape, dtype and device, contiguous or not, also a view that is conjugated or negated on reading.

    Returns:
        A vector of uint8 on the CPU.

    Hints:
        1. A sum of the elements does not see that two have changed places. What does?
        2. `hashlib.sha256`, fed twice; ``contiguous().flatten().view(torch.uint8).numpy()`` shows the bytes without a
           copy, which a tensor without elements cannot do. ``resolve_conj().resolve_neg()`` before all that.
    """
    raise NotAttempted("1.4 digest")


def assert_same_on_all_ranks(tensor: Tensor, name: str, group: ProcessGroup | None = None) -> None:
    """Raise on every rank if a tensor is not the same on all of them, bit by bit, and say on which.

    What travels is a `digest`, whether the tensor has one element or a billion. Bits are compared, not numbers: NaN
    equals NaN, and 0.0 is not -0.0. That is what copies of one model need.

    Args:
        tensor: any shape, dtype and device, contiguous or not, also different ones on different ranks.
        name: for the message.
        group: whose ranks compare; None: all.

    Raises:
        AssertionError: with the global ranks that hold each version, the most frequent version first.

    Example: "weight differs: ranks 0, 2, 3 have float32[4] 8d2f1a6c; rank 1 has float32[4] 07c3e9b1".

    Hints:
        1. Every rank should be able to name all others. Which collective brings everybody's bytes to everybody?
        2. `all_gather_single`, on `device`; `collections.Counter`; `dist.get_process_group_ranks`, `ranks_in_words` and
           `version_in_words`.
    """
    raise NotAttempted("1.4 assert_same_on_all_ranks")


# --- The detective ----------------------------------------------------------------------------------------------------


class Mismatch(NamedTuple):
    """A rank that made another call than the others.

    Attributes:
        rank: which.
        index: how many calls it had made before.
        call: what it called.
        expected: what the others called.
        others: these ranks.
    """

    rank: int
    index: int
    call: Call
    expected: Call
    others: tuple[int, ...]

    def __str__(self) -> str:
        verb = "" if self.call.op == EXIT else "called "
        groups = self.call.ranks != self.expected.ranks
        return (
            f"rank {self.rank} {verb}{in_words(self.call, groups)} (after {self.index} calls), "
            f"where {ranks_in_words(self.others)} called {in_words(self.expected, groups)}"
        )


class Slow(NamedTuple):
    """A rank that others wait for, and that has done nothing wrong so far.

    Attributes:
        rank: which.
        waiting: the ranks that wait for it, lowest first.
        call: the call in which the first of these waits.
    """

    rank: int
    waiting: tuple[int, ...]
    call: Call

    def __str__(self) -> str:
        wait = "wait" if len(self.waiting) > 1 else "waits"
        return f"rank {self.rank} is slow: {ranks_in_words(self.waiting)} {wait} for it in {in_words(self.call)}"


def replay(calls_by_rank: Sequence[Sequence[Call]]) -> list[int]:
    """Play the calls of all ranks as the machine does; how many of its calls each rank gets through.

    A rank stands at a call until every rank of the call's group stands at a call of the same ``kind``; then all of them
    move on to their next one. It is over when nobody can move. Calls are taken as blocking.

    Args:
        calls_by_rank: of each rank its calls, in the order it made them.

    Returns:
        Per rank, the number of calls that went through: all of them, or the index of the call it is stuck in.

    Example: rank 0 called A, B and rank 1 called A, C, all of ranks (0, 1): ``[1, 1]``.

    Hints:
        1. Which calls can go through *now*? What changes when one does?
        2. Look at what every rank stands at, again and again, until a whole round moves nobody.
    """
    raise NotAttempted("1.4 replay")


def first_mismatch(calls_by_rank: Sequence[Sequence[Call]]) -> Mismatch | None:
    """Who called what where the others called something else; None: nobody, as far as the calls go.

    Look at the calls in which ranks are `stuck`, and take the first of these that is the case:

    1. Two ranks stand at different calls of *one* group. The majority of those who stand at a call of this group is
       right; if there is none, the one with the lowest rank. The first other rank is the culprit.
    2. A rank that others wait for has left (its last call is `EXIT`). It is the culprit.
    3. Nobody they wait for is still to come: ranks stand at calls of different groups and wait for each other in a
       circle. The culprit is the rank that most ranks wait for (the lowest of equals).

    A rank that has made fewer calls and has not left may still make them: it is slow, and slow is not wrong. Equal
    calls cannot be told apart: who skips one of several shows where the row of equals ends.

    Args:
        calls_by_rank: of each rank its calls, in the order it made them.

    Returns:
        ``expected`` is the call of the lowest rank in ``others``: in case 1 those who agree with the majority, else all
        that wait for the culprit.

    Example: all of 3 ranks call A; then 0 and 2 call B, and rank 1 calls C: rank 1, index 1, call C, expected B.

    Hints:
        1. What is the difference between two ranks of one group at different calls, and a rank at a call of another
           group? One of the two can still come right.
        2. `stuck`, `waits_for`, `has_left` and `slow_ranks`; ``Counter.most_common`` keeps the order of equals.
    """
    raise NotAttempted("1.4 first_mismatch")


def slow_ranks(calls_by_rank: Sequence[Sequence[Call]]) -> list[Slow]:
    """The ranks that others wait for while they themselves are in no call and have not left; lowest first.

    A rank that is stuck in a call is no cause: it waits for somebody itself.

    Example: 4 ranks as (dp 2, tp 2). Rank 3 is late in its tp call, so rank 2 waits for it, and rank 0 in a dp call for
    rank 2: rank 3 is slow, rank 2 waits.

    Hints:
        1. `stuck`, `waits_for`, `has_left`.
    """
    raise NotAttempted("1.4 slow_ranks")


# --- Given: the environment -------------------------------------------------------------------------------------------

_RANGES = r"\[\d+(-\d+)?(,\d+(-\d+)?)*\]"
_NAME = rf"([^\s,\[\]]|{_RANGES})+"
NODELIST = rf"{_NAME}(,{_NAME})*"  # a regular expression: what Slurm writes


@contextmanager
def exported(variables: Mapping[str, str]) -> Iterator[None]:
    """Variables in ``os.environ`` for the length of a block; afterwards it has what it had before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, text in before.items():
            os.environ.pop(name, None)
            if text is not None:
                os.environ[name] = text


def is_missing(launcher: Launcher, names: str) -> str:
    """The sentence for variables that are not there."""
    return f"{launcher.name} started this process, but {names} is missing: use `{launcher.command}`, or set it"


def value(env: Mapping[str, str], launcher: Launcher, *names: str) -> str:
    """The first of some variables that is set and not empty, or a ValueError that says what is missing."""
    for name in names:
        if env.get(name):
            return env[name]
    raise ValueError(is_missing(launcher, " or ".join(names)))


def whole_number(env: Mapping[str, str], launcher: Launcher, *names: str) -> int:
    """`value` as a number, or a ValueError that says it is none."""
    text = value(env, launcher, *names)
    try:
        return int(text)
    except ValueError:
        name = next(name for name in names if env.get(name))
        raise ValueError(f"{name}={text!r} is no whole number, as {launcher.name} would set it") from None


def ranks_here(env: Mapping[str, str], launcher: Launcher) -> tuple[str, int]:
    """How many ranks this machine has, and the name of the variable that says so.

    Slurm says it for all nodes at once, ``"8(x3),4"``; where it does not, its ranks are spread evenly over the nodes.
    """
    if launcher is not SLURM:
        name = "LOCAL_WORLD_SIZE" if launcher is TORCHRUN else "OMPI_COMM_WORLD_LOCAL_SIZE"
        return name, whole_number(env, launcher, name)
    for name in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"):
        if name in env and "SLURM_NODEID" in env:
            counts = re.findall(r"(\d+)(?:\(x(\d+)\))?", env[name])
            per_node = [int(tasks) for tasks, times in counts for _ in range(int(times or 1))]
            node = whole_number(env, launcher, "SLURM_NODEID")
            if not 0 <= node < len(per_node):
                raise ValueError(f"SLURM_NODEID={node} contradicts {name}={env[name]!r}: it has {len(per_node)} nodes")
            return name, per_node[node]
    nodelist = value(env, launcher, "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    tasks = whole_number(env, launcher, launcher.world_size)
    return "SLURM_NTASKS per node", math.ceil(tasks / len(expand_nodelist(nodelist)))


def numbers(ranges: str) -> list[str]:
    """``"08-10,12"`` is ``["08", "09", "10", "12"]``."""
    spelled = []
    for part in ranges.split(","):
        low, _, high = part.partition("-")
        if int(high or low) < int(low):
            raise ValueError(f"{part} counts down: a range of nodes goes from low to high")
        spelled += [f"{number:0{len(low)}d}" for number in range(int(low), int(high or low) + 1)]
    return spelled


# --- Given: words -----------------------------------------------------------------------------------------------------


class RankHandler(logging.Handler):
    """Hands every message to `write_lines`, with the rank in front."""

    def __init__(self) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter("%(name)s: %(message)s"))

    def emit(self, record: logging.LogRecord) -> None:
        rank = dist.get_rank() if dist.is_initialized() else os.environ.get("RANK", "0")
        write_lines(f"[rank {rank}] ", self.format(record))


DIGEST_BYTES = 64


def version_in_words(version: bytes) -> str:
    """A `digest` for a reader: dtype, shape and eight digits."""
    return f"{version[16:].rstrip(bytes(1)).decode()} {version[:4].hex()}"


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``"rank 1"`` or ``"ranks 0, 2, 3"``."""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


# --- Given: the detective's notes -------------------------------------------------------------------------------------


def in_words(call: Call, group: bool = False) -> str:
    """What was called, on request in which group, and by which line."""
    what = f"{call.op} {call.dtype}{list(call.shape)}".replace("none", "").removesuffix(" []")
    what += f" in the group of {ranks_in_words(call.ranks)}" if group else ""
    return f"{'left the watched block' if call.op == EXIT else what} at {short_file(call.file)}:{call.line}"


def stuck(calls_by_rank: Sequence[Sequence[Call]]) -> dict[int, Call]:
    """The call each rank stands at when `replay` is over; without the ranks that got through all of theirs."""
    done = replay(calls_by_rank)
    return {rank: calls[done[rank]] for rank, calls in enumerate(calls_by_rank) if done[rank] < len(calls)}


def waits_for(rank: int, at: Mapping[int, Call]) -> list[int]:
    """The ranks that have not come to the call at which `rank` is stuck."""
    return [other for other in at[rank].ranks if other not in at or at[other].kind != at[rank].kind]


def has_left(calls: Sequence[Call]) -> bool:
    """Whether a rank will make no more calls."""
    return bool(calls) and calls[-1].op == EXIT


def accuse(rank: int, calls_by_rank: Sequence[Sequence[Call]], others: Sequence[int]) -> Mismatch:
    """The record: what `rank` did last or is stuck in, and what the lowest of the `others` is stuck in."""
    at = stuck(calls_by_rank)
    index = min(replay(calls_by_rank)[rank], len(calls_by_rank[rank]) - 1)
    return Mismatch(rank, index, calls_by_rank[rank][index], at[min(others)], tuple(sorted(others)))


def hang_watch(deadline: float = 10.0, on_hang: Callable[[Mismatch], None] | None = None) -> HangWatch:
    """The kit's `HangWatch` with your detective: ``with hang_watch(deadline=30): train()``."""
    return HangWatch(first_mismatch, slow_ranks, rank_logger("hang watch"), deadline, on_hang)
