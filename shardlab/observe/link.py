"""Another network under the same program: one of a given speed (`modelled_link`), or one that costs nothing
(`free_messages`).

On one machine messages go through memory, on the cores that compute. So a laptop shows neither what a slow link does to
a training step nor what hiding behind computation gains. These two change what carries a message, for every collective
of this process, whoever calls it: hand-written code, DDP's C++ reducer, `fully_shard`, DeepSpeed.
"""

from __future__ import annotations

import functools
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FakeProcessGroup, Work, _create_work_from_future

from shardlab.observe.calls import Call, _flat, carried


@contextmanager
def free_messages() -> Iterator[None]:
    """Nothing is sent inside the block, nobody waits for anybody: every collective is over as soon as it is called.

    A rank that would receive finds what it holds itself, as if all ranks held the same (torch's *fake* backend). So
    sums are wrong and times are right: a step takes as long as it would on a network that costs nothing. For
    measuring only; parameters trained inside are worth nothing.
    """
    with carried(_not_at_all):
        yield


@contextmanager
def modelled_link(bandwidth: float) -> Iterator[None]:
    """Every message of this process also has to pass a link of ``bandwidth`` bytes/s, one after the other.

    The real collective runs, then the link is busy for ``Call.sent_bytes / bandwidth`` seconds, on a helper thread that
    only sleeps: the processor is free meanwhile, as with a network card. For ranks on the CPU; GPUs have a link.

    Raises:
        ValueError: the bandwidth is not positive.
    """
    if not bandwidth > 0:
        raise ValueError(f"a link needs a positive bandwidth in bytes/s: got {bandwidth}")
    waiting: queue.SimpleQueue[tuple[Work, float, torch.futures.Future, Any] | None] = queue.SimpleQueue()

    def pass_one_after_the_other() -> None:
        while (message := waiting.get()) is not None:
            work, seconds, arrived, result = message
            try:
                work.wait()
                time.sleep(seconds)
                arrived.set_result(result)
            except Exception as error:  # a peer has gone, or the group's timeout is over: whoever waits gets to know
                arrived.set_exception(error)

    def carry(run: Callable[..., Any], arguments: list[Any], group_at: int, call: Call) -> Any:
        done = run(*arguments)
        outputs, work = _split(done)
        arrived = torch.futures.Future()
        waiting.put((Work.unbox(work), call.sent_bytes / bandwidth, arrived, outputs))
        return _joined(done, _create_work_from_future(arrived))

    thread = threading.Thread(target=pass_one_after_the_other, daemon=True, name="modelled link")
    thread.start()
    try:
        with carried(carry):
            yield
    finally:
        waiting.put(None)
        thread.join()


def _not_at_all(run: Callable[..., Any], arguments: list[Any], group_at: int, call: Call) -> Any:
    group = dist.ProcessGroup.unbox(arguments[group_at])
    arguments[group_at] = _pretended(group.rank(), group.size()).boxed()
    done = run(*arguments)
    over = torch.futures.Future()
    over.set_result(_split(done)[0])  # the fake backend's own handle has no result, which DDP's reducer asks for
    return _joined(done, _create_work_from_future(over))


@functools.cache
def _pretended(rank: int, ranks: int) -> dist.ProcessGroup:
    """A group of so many ranks of which only this one exists."""
    group, backend = dist.ProcessGroup(rank, ranks), FakeProcessGroup._create_internal(rank, ranks)
    for kind in ("cpu", "cuda"):
        group._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.CUSTOM, backend)
    return group


def _split(done: Any) -> tuple[list[torch.Tensor], Any]:
    """What an operator of c10d returned: its tensors as a list, and the handle. Some return the handle alone."""
    if not isinstance(done, (tuple, list)):
        return [], done
    outputs = done[0]
    return [outputs] if isinstance(outputs, torch.Tensor) else _flat(outputs), done[-1]


def _joined(done: Any, work: Work) -> Any:
    """As `done`, with another handle."""
    return (*done[:-1], work.boxed()) if isinstance(done, (tuple, list)) else work.boxed()
