"""Data parallelism of the course against PyTorch's and DeepSpeed's: step time, peak memory and traffic, in one run.

    python benchmarks/data_parallel.py
    python benchmarks/data_parallel.py --ranks 4 --rounds 30

Compared are the reference solutions of day 2 with DistributedDataParallel, `fully_shard`, ZeroRedundancyOptimizer, and
DeepSpeed's ZeRO-1, 2 and 3 where it is installed (tools/install.sh deepspeed). Both sides of a pair live in the same
processes, train the same model and take turns step by step, first one ahead, then the other. What counts is the median
of the ratios, so other work on the machine meets both. Memory and traffic are counted, and exact.

Then overlap, of which two cores show nothing in a step's time: by the order of calls (how many messages leave before
backward enters the first block), by the profiler's trace (how much of the time of messages has computation beside it),
and over a modelled link, on which a step's messages take as long as the rest of it.

Targets: step time at most 1.00x, peak memory at most 1.00x. Exits with 1 when memory misses, or time by more than
`NOISE`. On 2 cores that other work kept busy (10 rounds, load 8): DDP 1.04x, FSDP 0.99x, ZeRO-1 1.06x, each with 1.00x
between its quartiles; peak memory 0.995x, 1.000x and 0.776x. gloo's reduce-scatter is an all-reduce inside, so that
ZeRO-1's smaller traffic saves no time on CPUs.
"""

from __future__ import annotations

import io
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from functools import partial
from typing import Annotated, Any

import torch
import torch.distributed as dist
import typer
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from shardlab.grade.workspace import workspace
from shardlab.models import TransformerConfig
from shardlab.observe import Mark, Traffic, modelled_link
from shardlab.ranks import RankPool, device
from shardlab.show import table, usable_cores
from shardlab.syllabus import ROOT
from shardlab.tour import Job

PAIRS = [  # what, the course's, the peer
    ("DDP", "DDP, lesson 2.1", "DDP, torch"),
    ("FSDP", "FSDP, lesson 2.3", "FSDP, torch"),
    ("ZeRO-1", "ZeRO-1, lesson 2.2", "ZeroRedundancyOptimizer, torch"),
    *((f"ZeRO-{stage}", f"ZeRO-{stage}, lesson 2.2", f"ZeRO-{stage}, DeepSpeed") for stage in (1, 2, 3)),
]
NOISE = 1.05  # times the peer's step time, on a machine that does other things
EXACT = 1.005  # times the peer's bytes: a tensor of some numbers more is no miss
LINK_STEPS = 2
SECONDS = 600.0
AFTER = "all-reduce after backward, torch"
HIDING = [AFTER, "DDP, lesson 2.1", "DDP, torch", "ZeRO-2, lesson 2.2", "FSDP, lesson 2.3", "FSDP, torch"]


# --- On every rank ----------------------------------------------------------------------------------------------------


def builders(job: Job) -> dict[str, Callable[[], Any]]:
    """The strategies that can run here, by name."""
    from labs.day2_data_parallel.strategies_data_parallel_workshop import IMPLEMENTATIONS, contenders

    return {each.name: partial(each.build, job) for each in contenders(IMPLEMENTATIONS)}


def a_batch(job: Job) -> Tensor:
    generator = torch.Generator().manual_seed(job.seed)
    return torch.randint(job.config.vocab, (job.rows, job.config.sequence), generator=generator).to(device())


def slowest(seconds: list[float]) -> list[float]:
    """Of each step the longest time over the ranks."""
    everyone: list[list[float]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, seconds)
    return [max(times) for times in zip(*everyone, strict=True)]


def seconds_of(step: Callable[[Tensor], Tensor], batch: Tensor) -> float:
    dist.barrier()
    start = time.perf_counter()
    step(batch)
    if device().type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(job: Job, rounds: int) -> list[dict[str, Any]]:
    """Each pair whose two sides can run, in turns."""
    from labs.day2_data_parallel.data_parallel_workshop import observe_step

    torch.set_num_threads(1)
    batch, known, records = a_batch(job), builders(job), []
    for what, mine, theirs in PAIRS:
        if theirs not in known:
            continue
        sides = [observe_step(known[name], batch) for name in (mine, theirs)]
        seconds: list[list[float]] = [[], []]
        for number in range(rounds):
            for side in (0, 1) if number % 2 else (1, 0):
                seconds[side].append(seconds_of(sides[side][0], batch))
        own, peer = (slowest(times) for times in seconds)
        (_, seen), (_, seen_of_peer) = sides
        records.append(
            {
                "what": what,
                "peer": theirs,
                "losses": abs(seen.losses[-1] / seen_of_peer.losses[-1] - 1),
                "milliseconds": 1e3 * statistics.median(own),
                "time": [a / b for a, b in zip(own, peer, strict=True)],
                "memory": seen.peak_bytes / seen_of_peer.peak_bytes,
                "traffic": seen.sent_bytes / seen_of_peer.sent_bytes if seen_of_peer.sent_bytes else 1.0,
            }
        )
    return records


class MarkedJob(Job):
    """A job whose model tells `ledgers` when backward enters a block."""

    ledgers: list[Traffic] = []  # noqa: RUF012  # a rank is a process of its own

    def model(self) -> nn.Module:
        model = super().model()
        for block in model.blocks:
            block.register_forward_hook(self.follow)
        return model

    def follow(self, block: nn.Module, args: tuple, output: Tensor) -> None:
        if output.requires_grad:
            output.register_hook(self.enter)

    def enter(self, gradient: Tensor) -> None:
        for ledger in self.ledgers:
            ledger.mark("block")


def overlap(job: MarkedJob, name: str) -> dict[str, Any]:
    """How a strategy hides its messages: by the order of calls, by the trace, and over a modelled link."""
    from labs import tour_strategies
    from labs.day2_data_parallel.data_parallel_workshop import time_steps

    torch.set_num_threads(1)
    batch = a_batch(job)
    step = {**builders(job), AFTER: partial(tour_strategies.all_reduce_of_torch, job)}[name]()
    step(batch)
    step(batch)
    with Traffic() as traffic:
        job.ledgers.append(traffic)
        step(batch)
        job.ledgers.clear()
    kinds = ["block" if isinstance(event, Mark) else event.op for event in traffic.events]
    first_block = len(kinds) - kinds[::-1].index("block")  # backward enters it last
    gradients = [place for place, kind in enumerate(kinds) if kind in ("all_reduce", "reduce_scatter")]
    with profile(activities=[ProfilerActivity.CPU]) as trace:
        step(batch)
    _, free = time_steps(step, batch, LINK_STEPS)
    alone = statistics.median(slowest(free))
    with modelled_link(traffic.sent_bytes() / alone):
        linked, _ = time_steps(step, batch, LINK_STEPS)
    return {
        "early": sum(place < first_block for place in gradients),
        "messages": len(gradients),
        "trace": share_with_computation(trace),
        "link": statistics.median(slowest(linked)) / alone,
    }


def share_with_computation(trace: profile) -> float:
    """Of the time in which a message is under way, how much an operation of torch computes beside it, 0 to 1."""
    spans = {"message": [], "compute": []}
    for event in trace.events():
        kind = "message" if event.name.startswith(("gloo:", "nccl:")) else "compute"
        if kind == "message" or event.name.startswith("aten::"):
            spans[kind].append((event.time_range.start, event.time_range.end))
    messages, computing = (union(each) for each in spans.values())
    shared = sum(max(0, min(end, stop) - max(start, begin)) for start, end in messages for begin, stop in computing)
    total = sum(end - start for start, end in messages)
    return shared / total if total else 0.0


def union(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The same time, in spans that do not overlap."""
    merged: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(end, merged[-1][1])
        else:
            merged.append((start, end))
    return merged


# --- On the machine ---------------------------------------------------------------------------------------------------


def verdict(record: dict[str, Any]) -> str:
    """What misses its target, in words."""
    missed = [what for what in ("memory", "traffic") if record[what] > EXACT]
    ratio = statistics.median(record["time"])
    if ratio > 1.0:
        missed.append("time" if ratio > NOISE else "time, within noise")
    return ", ".join(missed) or "all met"


def main(
    ranks: Annotated[int, typer.Option(min=2, help="Ranks.")] = 2,
    rounds: Annotated[int, typer.Option(min=2, help="Steps of each side of a pair.")] = 10,
    hidden: Annotated[int, typer.Option(min=8, help="Width of the model, a multiple of 8.")] = 384,
    layers: Annotated[int, typer.Option(min=1, help="Blocks.")] = 6,
    rows: Annotated[int, typer.Option(min=1, help="Sequences of 64 tokens on each rank.")] = 4,
) -> None:
    """Measure everything and print two tables."""
    config = TransformerConfig(256, hidden, layers, heads=4, kv_heads=2, ffn=hidden // 8 * 21, sequence=64)
    job = Job(config, rows * ranks)
    with workspace(ROOT, ROOT / "solutions") as place, RankPool(path=[place]) as pool:
        records = pool.run(compare, ranks, job, rounds, timeout=SECONDS)[0]
        marked = MarkedJob(config, rows * ranks)
        with redirect_stdout(io.StringIO()):  # torch's profiler reports that it starts and stops
            hiding = {name: pool.run(overlap, ranks, marked, name, timeout=SECONDS)[0] for name in HIDING}
    where = (
        f"{config.parameters / 1e6:.1f} M parameters, {ranks} ranks, {usable_cores()} cores, torch {torch.__version__}"
    )
    table(
        f"Ours to the peer's: {where}",
        ["strategy", "peer", "ms", "step time", "its quartiles", "peak memory", "traffic", "missed targets"],
        [
            [
                record["what"],
                record["peer"],
                record["milliseconds"],
                f"{statistics.median(record['time']):.2f}x",
                "{0:.2f} to {2:.2f}".format(*statistics.quantiles(record["time"], n=4)),
                f"{record['memory']:.3f}x",
                f"{record['traffic']:.3f}x",
                verdict(record),
            ]
            for record in records
        ],
    )
    table(
        "Overlap",
        ["strategy", "messages before backward's last block", "beside computation (trace)", "step over the link"],
        [
            [name, f"{each['early']} of {each['messages']}", f"{each['trace']:.0%}", f"{each['link']:.2f}x"]
            for name, each in hiding.items()
        ],
    )
    print("The link is as slow as the step: 1.00x is all hidden, 2.00x nothing. Compare rows, not with 1.")
    if wrong := [record["what"] for record in records if record["losses"] > 1e-5]:
        sys.exit(f"not the peer's losses: {', '.join(wrong)}")
    if any(record["memory"] > EXACT or statistics.median(record["time"]) > NOISE for record in records):
        sys.exit("a target is missed")


if __name__ == "__main__":
    typer.run(main)
