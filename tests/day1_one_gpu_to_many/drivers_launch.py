"""What runs on each rank in the tests of 1.4: the learner's functions, called and watched.

Everything in here gives back plain data. The judge compares it.
"""

from __future__ import annotations

import inspect
import linecache
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from shardlab import NotAttempted
from shardlab.observe import Call

Event = tuple[str, tuple[int, ...], tuple[int, ...]]  # op, ranks of the group, shape: a call as the judge writes it


def outcome(function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """The value, or the error as text."""
    try:
        return function(*arguments, **options)
    except NotAttempted:
        raise
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def evaluate(lab: ModuleType, name: str, calls: Sequence[tuple]) -> list[Any]:
    """The outcome of the lab's function `name` (or a class's method) for each of `calls`."""
    function: Any = lab
    for part in name.split("."):
        function = getattr(function, part)
    return [outcome(function, *arguments) for arguments in calls]


def launchers(lab: ModuleType, environments: Sequence[Mapping[str, str]]) -> list[str]:
    """The name of the launcher in each environment, ``"nobody"``, or the error."""
    found = [outcome(lab.find_launcher, env) for env in environments]
    return [one if isinstance(one, str) else "nobody" if one is None else one.name for one in found]


def meeting_points(lab: ModuleType, cases: Sequence[tuple[str, Mapping[str, str]]]) -> list[Any]:
    """`meeting_point` for (TORCHRUN, OPEN_MPI or SLURM, environment) pairs."""
    return [outcome(lab.meeting_point, env, getattr(lab, launcher)) for launcher, env in cases]


# --- Joining ----------------------------------------------------------------------------------------------------------


def environment(lab: ModuleType, port: int, ranks: int, **changes: Any) -> Any:
    """An `Environment` for this rank, which meets the others on this machine."""
    rank = dist.get_rank() if dist.is_initialized() else int(os.environ["RANK"])
    fields = {"launcher": "torchrun", "rank": rank, "world_size": ranks, "local_rank": rank, "local_world_size": ranks}
    return lab.Environment(**{**fields, "master_address": "127.0.0.1", "master_port": port, **changes})


def notes_of_two_attempts(lab: ModuleType, port: int) -> list[str]:
    """Rank 0 leaves a note in the store of attempt 0; what every rank finds under that name in attempts 0 and 1."""
    agent = None
    if dist.get_rank() == 0:  # the store outlives the attempts, as torchrun's does
        agent = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    dist.barrier()
    stores = [
        lab.meet(environment(lab, port, dist.get_world_size(), attempt=attempt, agent_has_store=True), 10.0)
        for attempt in (0, 1)
    ]
    if dist.get_rank() == 0:
        stores[0].set("note", "from attempt 0")
    dist.barrier()
    found = [store.get("note").decode() if store.check(["note"]) else "nothing" for store in stores]
    dist.barrier()
    del agent
    return found


def meet_in_vain(lab: ModuleType, rank: int, port: int, ranks: int, timeout: float) -> tuple[str, float]:
    """Too few ranks come, one after the other: the error, and the seconds until it was there."""
    time.sleep(0.5 * dist.get_rank())
    start = time.monotonic()
    met = outcome(lab.meet, environment(lab, port, ranks, rank=rank), timeout)
    return (met if isinstance(met, str) else "no error"), time.monotonic() - start


def connect_with(lab: ModuleType, timeout: float) -> str:
    """What `connect` says to this timeout."""
    dist.destroy_process_group()

    def join() -> str:
        with lab.connect(environment(lab, 0, 1), timeout=timeout):
            return "no error"

    return outcome(join)


def meet_at_a_taken_port(lab: ModuleType) -> tuple[str, int]:
    """Rank 0 finds somebody else at its port."""
    with socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        met = outcome(lab.meet, environment(lab, port, 1), 5.0)
    return (met if isinstance(met, str) else "no error"), port


def meet_a_host(lab: ModuleType, port: int, opens: float, timeout: float, leaves: bool) -> tuple[str, float]:
    """Rank 1 of 3 meets a rank 0 that only opens a store, after `opens` seconds, and may leave when rank 1 is there.

    The error, and the time: on rank 0 when rank 1 was there, on rank 1 when it gave up.
    """
    start, error = time.monotonic(), ""
    if dist.get_rank() == 1:
        error = str(outcome(lab.meet, environment(lab, port, 3), timeout))
        now = time.monotonic()
    else:
        time.sleep(opens)
        store = dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
        keys = store.num_keys()
        while store.num_keys() == keys and time.monotonic() < start + 8:
            time.sleep(0.01)
        now = time.monotonic()
        if leaves:
            time.sleep(0.3)  # from the key that says "here" to the wait for the others
            del store
    dist.barrier()
    return error, now


RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def rank_variables() -> list[str | None]:
    return [os.environ.get(name) for name in RANK_VARIABLES]


def connected(lab: ModuleType, port: int) -> dict[str, Any]:
    """Inside and after a `connect`, after one whose block raised, and after one where nobody met."""
    ranks = dist.get_world_size()
    here, again = environment(lab, port, ranks), environment(lab, port + 1, ranks)
    nobody = environment(lab, 1, 2, rank=1)  # port 1: the machine's own, where nothing listens
    dist.destroy_process_group()
    for name in RANK_VARIABLES:
        os.environ.pop(name, None)
    os.environ["MASTER_PORT"] = "1234"
    with lab.connect(here, timeout=10) as group:
        total = torch.ones(3)
        dist.all_reduce(total, group=group)
        seen = {"rank": dist.get_rank(), "ranks": dist.get_world_size(), "total": total}
        seen["variables"] = rank_variables()
    seen |= {"after": dist.is_initialized(), "variables after": [rank_variables()]}
    try:
        with lab.connect(again, timeout=10):
            dist.barrier()
            raise KeyError("the block's own error")
    except KeyError:
        seen["after an error"] = dist.is_initialized()
    seen["variables after"].append(rank_variables())
    with suppress(TimeoutError, dist.DistError), lab.connect(nobody, timeout=0.3):
        pass
    seen["variables after"].append(rank_variables())
    return seen


def wait_alone(lab: ModuleType, port: int, timeout: float) -> tuple[str, float]:
    """Rank 1 never makes the call that rank 0 makes: what rank 0 gets, and after how many seconds."""
    dist.destroy_process_group()
    with lab.connect(environment(lab, port, 2), timeout=timeout):
        store = dist.group.WORLD.get_group_store()
        start = time.monotonic()
        if os.environ["RANK"] == "0":
            error = outcome(dist.all_reduce, torch.ones(1))
            store.set("rank 0 has given up", "")
            return str(error), time.monotonic() - start
        store.wait(["rank 0 has given up"], timedelta(seconds=25))
        return "", 0.0


@contextmanager
def instead_of_new_group(function: Callable[..., Any]) -> Iterator[None]:
    """Also where torch itself looks it up, as `dist.new_subgroups_by_enumeration` does."""
    new_group, places = dist.new_group, (dist, dist.distributed_c10d)
    for place in places:
        place.new_group = function
    try:
        yield
    finally:
        for place in places:
            place.new_group = new_group


def grid(lab: ModuleType, layout: Mapping[str, int], timeout: float) -> dict[str, Any]:
    """Every group that was made and with which timeout, this rank's own, and a sum over each of these."""
    made, new_group = [], dist.new_group

    def noted(ranks: Sequence[int] | None = None, *arguments: Any, **options: Any) -> Any:
        bound = inspect.signature(new_group).bind(ranks, *arguments, **options).arguments
        limit = bound.get("timeout")
        made.append((list(ranks), limit.total_seconds() if limit else None))
        return new_group(ranks, *arguments, **options)

    with instead_of_new_group(noted):
        groups = lab.make_groups(layout, timeout)
    sums = {}
    for name, group in groups.items():
        tensor = torch.tensor([float(dist.get_rank())])
        dist.all_reduce(tensor, group=group)
        sums[name] = tensor.item()
    return {
        "made": made,
        "mine": {name: dist.get_process_group_ranks(group) for name, group in groups.items()},
        "sums": sums,
    }


def refused_grids(lab: ModuleType, layouts: Sequence[Mapping[str, int]]) -> list[tuple[str, int]]:
    """For each layout the error, and how many groups were made before it."""
    made: list[tuple] = []
    errors = []
    with instead_of_new_group(lambda *arguments, **options: made.append(arguments)):
        for layout in layouts:
            made.clear()
            errors.append((str(outcome(lab.make_groups, layout)), len(made)))
    return errors


# --- Lines ------------------------------------------------------------------------------------------------------------


@contextmanager
def packets(descriptor: int | None = None) -> Iterator[tuple[int, list[bytes]]]:
    """A descriptor of which every write arrives as one packet, and the packets so far.

    Args:
        descriptor: of this process, such as 2 for stderr, to be replaced meanwhile.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    got: list[bytes] = []

    def read() -> None:
        while (packet := ours.recv(1 << 20)) != b"the end":
            got.append(packet)

    reader = threading.Thread(target=read)
    reader.start()
    kept = None
    if descriptor is not None:
        kept = os.dup(descriptor)
        os.dup2(theirs.fileno(), descriptor)
    try:
        yield theirs.fileno() if descriptor is None else descriptor, got
    finally:
        if kept is not None:
            os.dup2(kept, descriptor)
            os.close(kept)
        theirs.send(b"the end")
        reader.join()
        ours.close()
        theirs.close()


def written(lab: ModuleType, calls: Sequence[tuple[str, str]]) -> list[list[bytes]]:
    """The writes of `write_lines` for each (prefix, text)."""
    found = []
    for prefix, text in calls:
        with packets() as (descriptor, got):
            lab.write_lines(prefix, text, descriptor)
        found.append(got)
    return found


def write_nowhere(lab: ModuleType, prefix: str, text: str) -> str:
    """What `write_lines` says; what it writes is lost."""
    with Path(os.devnull).open("w") as nowhere:
        return str(outcome(lab.write_lines, prefix, text, nowhere.fileno()))


def logged(lab: ModuleType) -> list[bytes]:
    """What a rank's logger writes to stderr when it is asked for twice, with a busy root logger around it."""
    with packets(2) as (_, got):
        logging.basicConfig(level=logging.DEBUG, format="root: %(message)s")
        lab.rank_logger("train").info("step %d", 1)
        logger = lab.rank_logger("train")
        logger.debug("not shown")
        logger.warning("two\nlines")
        lab.rank_logger("data").info("another")
    return got


def share_a_file(lab: ModuleType, path: str, lines: int) -> None:
    """All ranks log to one file at once."""
    kept, file = os.dup(2), os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, 2)
    try:
        logger = lab.rank_logger("train")
        dist.barrier()
        for step in range(lines):
            logger.info(f"step {step} begins\nstep {step} ends {'.' * 100}")
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(file)


# --- Seeds and copies -------------------------------------------------------------------------------------------------


def draws(lab: ModuleType, calls: Sequence[tuple]) -> list[dict[str, float]]:
    """The first number of each generator after `seed_everything` with these arguments."""
    found = []
    for arguments in calls:
        lab.seed_everything(*arguments)
        found.append({"random": random.random(), "numpy": float(np.random.rand()), "torch": torch.rand(1).item()})
    return found


def digests(lab: ModuleType, tensors: Sequence[Tensor]) -> list[Tensor]:
    """`digest` of each tensor; of a matrix also of one with the same numbers that lies in memory by columns."""
    found = []
    for tensor in tensors:
        found.append(lab.digest(tensor))
        if tensor.dim() == 2:
            found.append(lab.digest(tensor.t().contiguous().t()))
    return found


def compare_copies(lab: ModuleType, copies: Sequence[Tensor], members: Sequence[int] | None) -> list[str]:
    """What `assert_same_on_all_ranks` says about each of this rank's tensors; empty where it says nothing."""
    group = dist.new_group(list(members), timeout=timedelta(seconds=20)) if members else None
    if members and dist.get_rank() not in members:
        return []
    said = [outcome(lab.assert_same_on_all_ranks, copy, f"copy {i}", group) for i, copy in enumerate(copies)]
    return ["" if text is None else str(text) for text in said]


# --- The detective ----------------------------------------------------------------------------------------------------


def as_calls(calls_by_rank: Sequence[Sequence[Event]]) -> list[list[Call]]:
    """The judge's short form as the kit's calls; the line is the place in the list."""
    return [
        [Call.event(op, ranks, shape, "float32", "train.py", line) for line, (op, ranks, shape) in enumerate(calls)]
        for calls in calls_by_rank
    ]


def inspect_calls(lab: ModuleType, name: str, cases: Sequence[Sequence[Sequence[Event]]]) -> list[Any]:
    """`replay`, `first_mismatch` or `slow_ranks` for each case."""
    return [outcome(getattr(lab, name), as_calls(case)) for case in cases]


SLOW_SECONDS = 1.2


def program(fault: str, culprit: int) -> None:
    """A training step in which one rank does something else."""
    odd = dist.get_rank() == culprit
    weights, loss = torch.ones(8), torch.ones(2)
    tensor_parallel = [dist.new_group(pair, timeout=timedelta(seconds=20)) for pair in ([0, 1], [2, 3])]
    pair = tensor_parallel[dist.get_rank() // 2]
    dist.all_reduce(weights)
    match fault:
        case "skip":
            if not odd:
                dist.all_reduce(loss)
            dist.broadcast(weights, 0)
        case "leave":
            if not odd:
                dist.all_reduce(loss)
        case "shape":
            dist.all_reduce(loss[:1] if odd else loss)
        case "dtype":
            dist.all_reduce(loss.double() if odd else loss)
        case "order":
            for call in (dist.broadcast, dist.reduce) if odd else (dist.reduce, dist.broadcast):
                call(loss, 0)
        case "groups":
            for members in ([1, 3], [0, 2]) if odd else ([0, 2], [1, 3]):
                dist.new_group(members, timeout=timedelta(seconds=20))
        case "circle":
            for group in (pair, None) if odd else (None, pair):
                dist.all_reduce(loss, group=group)
        case "slow":
            if odd:
                time.sleep(SLOW_SECONDS)
            dist.all_reduce(loss)


def clinic(lab: ModuleType, fault: str, culprit: int, deadline: float) -> dict[str, Any]:
    """Run the program in a thread, under the learner's watch, and tell what the watch says; the thread may hang."""
    lab.first_mismatch([]), lab.slow_ranks([]), lab.write_lines("", "the watch begins")  # attempted?
    watch = lab.hang_watch(deadline, on_hang=lambda mismatch: over.set())
    over = threading.Event()

    def watched() -> None:
        try:
            with watch:
                program(fault, culprit)
        finally:
            over.set()

    threading.Thread(target=watched, daemon=True).start()
    start = time.monotonic()
    in_time = over.wait(15)
    mismatch = watch.mismatch
    return {
        "in time": in_time,
        "seconds": time.monotonic() - start,
        "mismatch": mismatch and (mismatch.rank, mismatch.call.op, list(mismatch.call.shape), mismatch.call.file),
        "line": mismatch and linecache.getline(mismatch.call.file, mismatch.call.line).strip(),
        "expected line": mismatch and linecache.getline(mismatch.expected.file, mismatch.expected.line).strip(),
        "slow": [(slow.rank, linecache.getline(file, line).strip()) for slow, file, line in watch.slow],
    }
