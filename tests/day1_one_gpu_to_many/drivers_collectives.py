"""What runs on each rank in the tests of 1.3: the learner's functions, called one by one and watched.

Everything in here gives back plain data. The judge compares it.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from shardlab import NotAttempted
from shardlab.observe import Traffic
from shardlab.ranks import device

Arguments = tuple[Any, ...]

# --- Groups -----------------------------------------------------------------------------------------------------------


def _group_options() -> dict[str, bool]:
    """torch sorts the ranks of a new group, unless it is recent enough to be told not to."""
    return {"sort_ranks": False} if "sort_ranks" in inspect.signature(dist.new_group).parameters else {}


def group_order(members: Sequence[int]) -> list[int]:
    """The global ranks of a group of `members`, by group rank."""
    return list(members) if _group_options() else sorted(members)


def new_group(members: Sequence[int]) -> dist.ProcessGroup:
    """A group whose ranks are in the order given, where torch allows it. All ranks call it."""
    return dist.new_group(list(members), timeout=timedelta(seconds=20), **_group_options())


# --- Calls, each with its traffic and its error -----------------------------------------------------------------------


def watch(function: Callable[..., Any], arguments: Arguments, **options: Any) -> dict[str, Any]:
    """Call `function`; tell what became of its arguments, what travelled, and which error it raised ("" for none)."""
    error = ""
    with Traffic() as traffic:
        try:
            function(*arguments, **options)
        except NotAttempted:
            raise
        except Exception as raised:
            error = f"{type(raised).__name__}: {raised}"
    return {"arguments": arguments, "events": traffic.to_data(), "error": error}


def call_each(lab: ModuleType, calls: Sequence[Arguments], name: str) -> list[dict[str, Any]]:
    """Call the lab's function `name` on the default group, once for each of `calls`."""
    return [watch(getattr(lab, name), arguments) for arguments in calls]


def call_each_in_group(
    lab: ModuleType, calls: Sequence[Arguments], name: str, members: Sequence[int]
) -> list[dict[str, Any]]:
    """The same on a group of `members`; the other ranks call it too, which must be refused."""
    group = new_group(members)
    return [watch(getattr(lab, name), arguments, group=group) for arguments in calls]


def call_each_with_chunks(
    lab: ModuleType, calls: Sequence[Sequence[Tensor]], name: str, keep_chunks: bool
) -> list[dict[str, Any]]:
    """Call one of the two halves of the ring on each list of chunks.

    Args:
        keep_chunks: give `reduce_scatter_chunks` one vector for all sums; else it works in place.
    """
    watched = []
    for chunks in calls:
        sums = [torch.full_like(chunks[dist.get_rank()], -99)] * len(chunks) if keep_chunks else chunks
        arguments = (chunks, sums) if name == "reduce_scatter_chunks" else (chunks,)
        watched.append(watch(getattr(lab, name), (*arguments, None)) | {"sums": sums})
    return watched


def swap(lab: ModuleType, mine: Tensor, members: Sequence[int]) -> Tensor | None:
    """Two ranks of a group swap a tensor in one `exchange`; None on ranks outside the group."""
    group = new_group(members)
    if dist.get_rank() not in members:
        return None
    theirs = torch.full_like(mine, -99)
    peer = 1 - dist.get_rank(group)
    lab.exchange(group, sends=[(mine, peer)], receives=[(theirs, peer)])
    return theirs


def gather_at_rank_0(lab: ModuleType, mine: Tensor, late: int) -> list[Tensor]:
    """Rank 0 receives from 1 and 2 in one round, of which `late` is late; then comes a round without a message."""
    if dist.get_rank() == 0:
        received = [torch.full_like(mine, -99) for _ in range(2)]
        lab.exchange(None, receives=[(received[0], 1), (received[1], 2)])
    else:
        time.sleep(0.2 if dist.get_rank() == late else 0)
        lab.exchange(None, sends=[(mine, 0)])
        received = []
    lab.exchange(None)
    return received


def gather_in_place(lab: ModuleType, block: Tensor) -> Tensor:
    """All-gather where this rank's input already lies in its place of the output."""
    output = torch.full((dist.get_world_size() * block.numel(),), -99.0, device=block.device)
    own = output.tensor_split(dist.get_world_size())[dist.get_rank()]
    lab.all_gather(output, own.copy_(block))
    return output


# --- Bad input --------------------------------------------------------------------------------------------------------


def refuse_each(lab: ModuleType, name: str) -> dict[str, dict[str, Any]]:
    """Try every bad input for the function `name`; by description, what came of it."""
    outcomes = {what: watch(getattr(lab, name), arguments) for what, arguments in bad_inputs(name).items()}
    return {what: {"error": outcome["error"], "events": outcome["events"]} for what, outcome in outcomes.items()}


def bad_inputs(name: str) -> dict[str, Arguments]:
    """Arguments that `name` must refuse, by description."""
    ranks = dist.get_world_size()

    def vector(numel: int, **options: Any) -> Tensor:
        return torch.ones(numel, **{"device": device()} | options)

    short, long = vector(3), vector(3 * ranks)
    strided = vector(6)[::2]
    elsewhere = vector(3, device="meta")
    counts = vector(3, dtype=torch.int64)
    match name:
        case "broadcast":
            return {
                "a source outside the group": (short, ranks),
                "a negative source": (short, -1),
                "a tensor that is not contiguous": (strided, 0),
                "a tensor on another device": (elsewhere, 0),
            }
        case "reduce_scatter":
            return {
                "an input one element short": (short, long[:-1]),
                "an output of another dtype": (counts, long),
                "an output on another device": (elsewhere, long),
                "an output that is not contiguous": (strided, long),
                "an output that is part of the input": (long[:3], long),
            }
        case "all_gather":
            return {
                "an output one element short": (long[:-1], short),
                "an input of another dtype": (long, counts),
                "an input on another device": (long, elsewhere),
                "an input that is not contiguous": (long, strided),
            }
        case "all_to_all":
            blocks = list(vector(3 * ranks).split(3))
            return {
                "one output too few": (blocks[1:], list(long.split(3))),
                "one input too many": (blocks, [*long.split(3), short]),
                "an input of another dtype": (blocks, [counts] * ranks),
                "an input on another device": (blocks, [elsewhere] * ranks),
                "an own block with two lengths": (blocks, [vector(4)] * ranks),
            }
        case _:
            return {"a tensor that is not contiguous": (strided,), "a tensor on another device": (elsewhere,)}


# --- In the background ------------------------------------------------------------------------------------------------

JOIN_SECONDS = 2.0  # how long the other ranks wait for rank 0 to come back from its call
PROGRESS_SECONDS = 5.0  # how long a ring may take in the background


def late_peers(lab: ModuleType, tensor: Tensor) -> dict[str, bool]:
    """Rank 0 starts a ring while the others are busy; they join when it has come back from the call, or give up."""
    store = dist.distributed_c10d._get_default_store()  # the ranks' own notice board: no message of the ring's
    came_back = "rank 0 came back from ring_all_reduce"
    if dist.get_rank() > 0:
        in_time = _wait_until(lambda: store.check([came_back]), JOIN_SECONDS)
        handle = lab.ring_all_reduce(tensor, async_op=True)
    else:
        handle = lab.ring_all_reduce(tensor, async_op=True)
        store.set(came_back, "yes")
        in_time = True
    handle.wait()
    return {"came back while its peers were busy": in_time}


def busy_rank(lab: ModuleType, tensor: Tensor, want: Tensor) -> bool:
    """Every rank starts a ring and computes; whether the sum was there before anyone waited for it."""
    handle = lab.ring_all_reduce(tensor, async_op=True)
    arrived = _wait_until(lambda: torch.equal(tensor, want), PROGRESS_SECONDS)
    handle.wait()
    return arrived


def _wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not (met := condition()) and time.monotonic() < deadline:
        time.sleep(0.005)
    return met


def several_in_flight(lab: ModuleType, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Rings in the background all at once, one in the foreground between them, waited for from last to first."""
    first, *others = tensors
    time.sleep(0.01 * dist.get_rank())  # ranks are never in step
    handles = [lab.ring_all_reduce(tensor, async_op=True) for tensor in others]
    lab.ring_all_reduce(first)
    for handle in reversed(handles):
        handle.wait()
    return list(tensors)


def refusal_in_background(lab: ModuleType) -> str:
    """The error of an asynchronous call with bad input, and where it came: from the call, or only from `wait`."""
    try:
        handle = lab.ring_all_reduce(torch.ones(6, device=device())[::2], async_op=True)
    except ValueError:
        return "call"
    try:
        handle.wait()
    except ValueError:
        return "wait"
    return "nowhere"


# --- Arithmetic -------------------------------------------------------------------------------------------------------


def evaluate(lab: ModuleType, name: str, calls: Sequence[Arguments]) -> list[Any]:
    """The values of the lab's function `name` for each of `calls`; an error as text."""
    values: list[Any] = []
    for arguments in calls:
        try:
            values.append(getattr(lab, name)(*arguments))
        except NotAttempted:
            raise
        except Exception as error:
            values.append(f"{type(error).__name__}: {error}")
    return values
