"""Experiments on groups of ranks: calls timed in turns, and the same measurement on the first 1, 2, 4, ... ranks."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

import torch
import torch.distributed as dist
from torch.distributed import ProcessGroup

from shardlab.ranks.device import device
from shardlab.show.progress import progress


def time_repeats(
    calls: Mapping[str, Callable[[int], object]], repeats: int, group: ProcessGroup | None = None, warm_up: int = 1
) -> dict[str, float]:
    """Median of the slowest rank's seconds, by name. What else the machine does meets all calls alike.

    Args:
        calls: get the number of the repeat, from 0.
        repeats: of each call, those that warm up among them.
        warm_up: the first repeats, which do not count.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for repeat in range(repeats):
        for name, call in calls.items():
            times[name].append(seconds_of(lambda call=call, repeat=repeat: call(repeat), group))
    return slowest_medians(times, group, warm_up)


def seconds_of(call: Callable[[], object], group: ProcessGroup | None = None) -> float:
    """Of one call on this rank, which the ranks of the group begin together."""
    dist.barrier(group)
    start = time.perf_counter()
    call()
    if device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def slowest_medians(
    times: Mapping[str, list[float]], group: ProcessGroup | None = None, warm_up: int = 1
) -> dict[str, float]:
    """Of each name's repeats the slowest rank's seconds, and of these the median without those that warm up."""
    slowest = torch.tensor(list(times.values()), dtype=torch.float64, device=device())
    dist.all_reduce(slowest, dist.ReduceOp.MAX, group)
    return {name: statistics.median(row[warm_up:]) for name, row in zip(times, slowest.tolist(), strict=True)}


def on_each_size(groups: Mapping[int, ProcessGroup], title: str, measure: Callable[[int], list[dict]]) -> list[dict]:
    """``measure(n)`` for each n of `groups`, on the ranks 0 ... n-1, the others waiting; the records of this rank."""
    records = []
    with progress(title, len(groups)) as advance:
        for ranks in groups:
            if dist.get_rank() < ranks:
                records += measure(ranks)
            dist.barrier()
            advance()
    return records
