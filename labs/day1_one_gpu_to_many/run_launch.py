"""Lesson 1.4 at work: the four-rank experiment, on any number of ranks and by any launcher.

Your own launch, from end to end. Every rank says who it is; all check that they start from the same weights; then each
collective of the backend is checked under your watch (a wrong element: exit code 1) and timed. The table has the
columns of nccl-tests: `algbw` is size / time, `busbw` what the busiest rank sent / time, to hold against the hardware.

`--inject` breaks a training step on purpose, on rank 1, and your tool has to say what happened: who, in which call, on
which line. Exit code 3 (of the ranks; torchrun makes 1 of it), within 15 s instead of 30 minutes. A slow rank is
reported too, and waited for: exit code 0. With `--impl torch` the same step runs without your watch, joined by torch
alone: see what PyTorch says, and when; also with TORCH_DISTRIBUTED_DEBUG=DETAIL in the environment.

Tier 1, a laptop CPU (2 cores, gloo over loopback; 20 s on 4 ranks, 10 s with --inject). One rank, four ranks, a hang:

    python labs/day1_one_gpu_to_many/run_launch.py
    torchrun --standalone --nproc-per-node 4 labs/day1_one_gpu_to_many/run_launch.py
    torchrun --standalone --nproc-per-node 4 labs/day1_one_gpu_to_many/run_launch.py --inject skip

A rank that dies, and is started again with all others. Two nodes on one machine: two agents that meet at one address,
in two terminals. (Two jobs at once: `--standalone` takes a free port for each.)

    torchrun --standalone --nproc-per-node 2 --max-restarts 1 labs/day1_one_gpu_to_many/run_launch.py --inject crash
    torchrun --nnodes 2 --nproc-per-node 2 --rdzv-id demo --rdzv-backend c10d --rdzv-endpoint localhost:29517 \\
        labs/day1_one_gpu_to_many/run_launch.py

Without torchrun: mpirun and srun start the ranks themselves. (Run with mpirun of Open MPI 4.1. Not run with srun: its
variables were set by hand.)

    mpirun -np 4 python labs/day1_one_gpu_to_many/run_launch.py
    srun --ntasks 4 python labs/day1_one_gpu_to_many/run_launch.py

Tier 2, one multi-GPU box (NCCL, one rank per GPU; not run). Expect busbw near the data sheet of the links at 1 GiB, and
real hangs where gloo would add up what it gets, or abort.

    torchrun --standalone --nproc-per-node 8 labs/day1_one_gpu_to_many/run_launch.py --max-bytes 1G

Tier 3, a cluster under Slurm (not run): one task per GPU, no torchrun. The address is the first node of the step, the
port comes from the numbers of job and step.

    srun --nodes 4 --ntasks-per-node 8 --gpus-per-node 8 python labs/day1_one_gpu_to_many/run_launch.py --max-bytes 1G

Writes results/launch.json and results/launch.svg.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass
from datetime import timedelta

import torch
import torch.distributed as dist

from labs.day1_one_gpu_to_many import launch as mine
from shardlab import show
from shardlab.observe import Traffic
from shardlab.observe.benchmark import (
    BUILT_IN,
    OPS,
    OPS_ON_BLOCKS,
    parse_bytes,
    problem,
    sizes_between,
    time_in_turns,
)
from shardlab.ranks import clean_end, device, torchrun_ranks

FAULTS = ("skip", "shape", "order", "groups", "slow", "crash")
CULPRIT = 1
GB_PER_S = 1e9
SEED = 14


# --- A step that goes wrong -------------------------------------------------------------------------------------------


def broken_step(fault: str, slow_seconds: float) -> None:
    """One training step; the culprit makes a mistake that people make."""
    culprit = dist.get_rank() == CULPRIT
    body, head, loss = (torch.ones(numel, device=device()) for numel in (4096, 1024, 1))
    halves = [list(range(start, dist.get_world_size(), 2)) for start in (0, 1)]
    dist.all_reduce(body)
    if fault == "crash" and culprit and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        os._exit(13)  # "out of memory, once"
    if fault == "groups":  # "each rank makes its own group first"
        for members in halves[::-1] if culprit else halves:
            dist.new_group(members, timeout=timedelta(seconds=60))
    if fault == "slow" and culprit:
        time.sleep(slow_seconds)  # "rank 1 writes the checkpoint"
    if fault == "order" and culprit:
        dist.broadcast(loss, 0)  # "log first, then step"
        dist.all_reduce(head)
    elif fault == "shape" and culprit:
        dist.all_reduce(head[:1000])  # "my last batch is shorter"
        dist.broadcast(loss, 0)
    else:
        if fault != "skip" or not culprit:  # "nothing to send: my part of the batch was empty"
            dist.all_reduce(head)
        dist.broadcast(loss, 0)


# --- Measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """One row of the table. The time and bandwidths are None where the result was wrong: there is nothing to time."""

    op: str
    num_bytes: int
    wrong: int
    seconds: float | None = None
    algbw: float | None = None  # bytes/s
    busbw: float | None = None  # bytes/s


def check(op: str, num_bytes: int) -> tuple[int, int, int]:
    """Bytes of the full tensor, wrong elements, and bytes that the busiest rank sent."""
    numel = num_bytes // 4  # float32
    if op in OPS_ON_BLOCKS:
        numel -= numel % dist.get_world_size()
    task = problem(op, numel)
    with Traffic() as traffic:
        BUILT_IN[op](*task.arguments)
    sent = torch.tensor(traffic.sent_bytes(), device=device())
    dist.all_reduce(sent, dist.ReduceOp.MAX)
    return 4 * numel, task.count_wrong(), int(sent)


def measure(op: str, num_bytes: int, wrong: int, sent: int) -> Measurement:
    """Time a call whose result was right."""
    if wrong:
        return Measurement(op, num_bytes, wrong)
    task = problem(op, num_bytes // 4)
    for tensor in task.result:
        tensor.zero_()  # sums of zeros stay finite however often they are repeated
    seconds = time_in_turns({op: (BUILT_IN[op], task.arguments)})[op]
    return Measurement(op, num_bytes, wrong, seconds, num_bytes / seconds, sent / seconds)


def sweep(ops: Sequence[str], sizes: Sequence[int], watch: object) -> list[Measurement]:
    """Check everything under the watch, which costs time, then time it without."""
    cases = [(op, size) for op in ops for size in sizes]
    with watch:
        checked = [(op, *check(op, size)) for op, size in cases]
    rows = []
    with show.progress("measuring", len(cases)) as advance:
        for case in checked:
            rows.append(measure(*case))
            advance()
    return rows


# --- Table, figure, verdict -------------------------------------------------------------------------------------------


def print_table(rows: Sequence[Measurement]) -> None:
    columns = ["operation", "size (B)", "count", "type", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong"]
    cells = []
    for row in rows:
        timed = row.seconds is not None
        figures = (
            [f"{1e6 * row.seconds:.0f}", f"{row.algbw / GB_PER_S:.3f}", f"{row.busbw / GB_PER_S:.3f}"]
            if timed
            else ["-"] * 3
        )
        cells.append([row.op, row.num_bytes, row.num_bytes // 4, "float", *figures, row.wrong])
    show.table(f"{dist.get_world_size()} ranks, {dist.get_backend()} on {device().type}", columns, cells)


def draw(rows: Sequence[Measurement]) -> None:
    """Time and bus bandwidth of each collective by size."""
    import matplotlib.pyplot as plt

    show.use_style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5))
    for index, op in enumerate(dict.fromkeys(row.op for row in rows)):
        timed = [row for row in rows if row.op == op and row.seconds]
        sizes = [row.num_bytes / 2**10 for row in timed]
        left.plot(sizes, [1e3 * row.seconds for row in timed], "o-", color=show.rank_colour(index), label=op)
        right.plot(sizes, [row.busbw / GB_PER_S for row in timed], "o-", color=show.rank_colour(index), label=op)
    title = f"{dist.get_world_size()} ranks, {dist.get_backend()}"
    left.set(title=title, xlabel="KiB", ylabel="ms", xscale="log", yscale="log")
    right.set(title="What the busiest rank sent", xlabel="KiB", ylabel="busbw (GB/s)", xscale="log", ylim=(0, None))
    left.legend(fontsize=9)
    show.save_figure(figure, "results/launch.svg")
    plt.close(figure)


def join(impl: str, stack: ExitStack, deadline: float) -> str:
    """Be a rank, by your own launch or by torch's; how, in words."""
    if impl == "torch":
        stack.enter_context(torchrun_ranks(timeout=deadline))
        return "torch"
    environment = mine.Environment.from_env()
    stack.enter_context(mine.connect(environment, timeout=60))
    place = f"local rank {environment.local_rank} of {environment.local_world_size}"
    return f"{environment.launcher}, {place}, attempt {environment.attempt}"


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--inject", choices=FAULTS, help=f"what rank {CULPRIT} does wrong")
    options.add_argument(
        "--impl", choices=("mine", "torch"), default="mine", help="your launch and watch, or torch alone"
    )
    options.add_argument("--deadline", type=float, default=5.0, help="seconds without a call that make a hang (5)")
    options.add_argument("--op", nargs="+", choices=OPS, default=list(OPS), help="operations (all)")
    options.add_argument("--min-bytes", type=parse_bytes, default="4K", help="smallest tensor (4K)")
    options.add_argument("--max-bytes", type=parse_bytes, default="16M", help="largest tensor (16M)")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with clean_end(), ExitStack() as stack:
        try:
            how = join(chosen.impl, stack, chosen.deadline)
        except (ValueError, TimeoutError, ConnectionError) as error:
            print(f"cannot join: {error}", file=sys.stderr)
            return 2
        return work(chosen, options, how)


def work(chosen: argparse.Namespace, options: argparse.ArgumentParser, how: str) -> int:
    """What a rank does once it is one; the exit code."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    if not 4 * ranks <= chosen.min_bytes <= chosen.max_bytes or chosen.deadline <= 0:
        options.error(f"need {4 * ranks} <= --min-bytes <= --max-bytes on {ranks} ranks, and a --deadline above 0")
    if chosen.inject and ranks <= CULPRIT:
        options.error(f"--inject needs {CULPRIT + 1} ranks or more: it is rank {CULPRIT} that goes wrong")
    watch = nullcontext()
    if chosen.impl == "mine":
        log = mine.rank_logger("launch")
        log.info(f"rank {rank} of {ranks} ({how}), process {os.getpid()} on {socket.gethostname()}, {device()}")
        mine.seed_everything(SEED, rank)
        mine.assert_same_on_all_ranks(torch.rand(1000, device=device()), "weights")
        watch = mine.hang_watch(chosen.deadline)
    if chosen.inject:
        with watch:
            broken_step(chosen.inject, slow_seconds=1.5 * chosen.deadline)
        if show.is_rank_zero():
            print(f"The step came to its end, with --inject {chosen.inject}.")
        return 0
    rows = sweep(chosen.op, sizes_between(chosen.min_bytes, chosen.max_bytes), watch)
    print_table(rows)
    path = show.write_results("launch", {"ranks": ranks, "launcher": how, "rows": [asdict(row) for row in rows]})
    wrong = [row for row in rows if row.wrong]
    if show.is_rank_zero():
        draw(rows)
        found = (
            f"WRONG: {wrong[0].op} has {wrong[0].wrong} wrong elements at {wrong[0].num_bytes:,} B." if wrong else ""
        )
        print(found or f"Every result was right. Written: {path}, results/launch.svg")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
