"""What a small test on N ranks costs: `run_ranks` against `torch.multiprocessing.spawn`, CPU time, in one run.

    python benchmarks/ranks.py
    python benchmarks/ranks.py --ranks 4 --spawns 3 --calls 50

The test is the same on both sides: join a group, all-reduce four numbers, bring the sum home. Counted is the CPU time
of every process involved, user and system, after one call that warms the pool up. Exits with 1 when the ratio is
below 50 on 2 ranks, the bar the course's tests rely on.
"""

from __future__ import annotations

import datetime
import os
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Annotated

import psutil
import torch
import torch.distributed as dist
import torch.multiprocessing
import typer

from shardlab.ranks import RankPool
from shardlab.show import table

BAR = 50.0  # times cheaper than a spawned test, on 2 ranks


def hello() -> float:
    """The test itself, inside a group."""
    tensor = torch.ones(4)
    dist.all_reduce(tensor)
    return tensor.sum().item()


def spawned_rank(rank: int, ranks: int, store: str, results: torch.multiprocessing.SimpleQueue) -> None:
    """One rank of the spawned test, as such tests are commonly written."""
    dist.init_process_group(
        "gloo",
        store=dist.FileStore(store, ranks),
        rank=rank,
        world_size=ranks,
        timeout=datetime.timedelta(seconds=60),
    )
    results.put(hello())
    dist.destroy_process_group()


def spawn_hello(ranks: int) -> None:
    """The test by `torch.multiprocessing.spawn`."""
    results = torch.multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(spawned_rank, (ranks, f"{folder}/store", results), ranks)
    assert [results.get() for _ in range(ranks)] == [4.0 * ranks] * ranks


def cpu_seconds() -> float:
    """CPU time of this process and everything it started: ended children, and the warm parent with its ended ranks."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    alive = [process.cpu_times() for process in [psutil.Process(), *psutil.Process().children()]]
    warm_parents = sum(times.children_user + times.children_system for times in alive[1:])
    return ended.ru_utime + ended.ru_stime + sum(times.user + times.system for times in alive) + warm_parents


def cost(test: Callable[[], None], times: int) -> tuple[float, float]:
    """CPU seconds per call, and median seconds of a call."""
    used, seconds = cpu_seconds(), []
    for _ in range(times):
        start = time.perf_counter()
        test()
        seconds.append(time.perf_counter() - start)
    return (cpu_seconds() - used) / times, statistics.median(seconds)


def main(
    ranks: Annotated[int, typer.Option(min=1, help="Ranks of the test.")] = 2,
    spawns: Annotated[int, typer.Option(min=1, help="How often to run the spawned test (seconds each).")] = 3,
    calls: Annotated[int, typer.Option(min=1, help="How often to run it on the pool (milliseconds each).")] = 50,
) -> None:
    """Measure both and print the ratio."""
    with RankPool() as pool:

        def pooled() -> None:
            assert pool.run(hello, ranks) == [4.0 * ranks] * ranks

        pooled()  # imports torch in the warm parent
        pool_cpu, pool_wall = cost(pooled, calls)
        spawn_cpu, spawn_wall = cost(lambda: spawn_hello(ranks), spawns)
    rows = [
        ("torch.multiprocessing.spawn", f"{1e3 * spawn_cpu:.1f}", f"{1e3 * spawn_wall:.1f}", "1"),
        ("run_ranks", f"{1e3 * pool_cpu:.1f}", f"{1e3 * pool_wall:.1f}", f"1/{spawn_cpu / pool_cpu:.0f}"),
    ]
    title = f"all-reduce on {ranks} ranks, {os.cpu_count()} cores, torch {torch.__version__}"
    table(title, ["way", "CPU ms", "wall ms", "share of CPU"], rows)
    if ranks == 2 and spawn_cpu / pool_cpu < BAR:
        sys.exit(f"run_ranks costs more than 1/{BAR:.0f} of a spawned test")


if __name__ == "__main__":
    typer.run(main)
