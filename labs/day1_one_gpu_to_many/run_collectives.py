"""Lesson 1.3 at work: how fast are your collectives, and where does which one win?

A sweep over tensor sizes, your algorithms and the backend's taking turns. Every result is checked before it is timed (a
wrong one: exit code 1). The table has the columns of nccl-tests: `algbw` is size / time, `busbw` what each link of a
ring carried, to be held against the hardware. Then alpha and beta are fitted to your ring, and the model says where
the ring should overtake recursive doubling; the measurement says where it did.

Tier 1, a laptop CPU (2 cores, gloo over loopback; 15 s on 2 ranks, 25 s on 4, 50 s on 8). Expect few rounds to win
while tensors are small: recursive doubling and the tree. At 64 MiB expect the ring to win, and to take 0.9 to 1.2 times
as long as gloo's own, which is a ring too.

    python labs/day1_one_gpu_to_many/run_collectives.py
    torchrun --standalone --nproc-per-node 4 labs/day1_one_gpu_to_many/run_collectives.py
    torchrun --standalone --nproc-per-node 2 labs/day1_one_gpu_to_many/run_collectives.py --op all_gather reduce_scatter

Tier 2, one multi-GPU box (NCCL, one rank per GPU). Expect NCCL ahead by a factor on small sizes, where one fused kernel
stands against many launches, and yours closer at 1 GiB. On 8 H200 nccl-tests itself reaches a busbw of about 366 GB/s
with its ring (ml-engineering, network/README.md, "SHARP").

    torchrun --standalone --nproc-per-node 8 labs/day1_one_gpu_to_many/run_collectives.py --max-bytes 1G

Tier 3, a cluster: the same line on every node, here under Slurm. alpha and beta are now those of the slowest link.

    srun --nodes 4 --ntasks-per-node 1 torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint $(scontrol show hostnames | head -1):29500 \\
        labs/day1_one_gpu_to_many/run_collectives.py --max-bytes 1G

Writes results/collectives.json and results/collectives.svg.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import torch
import torch.distributed as dist

from labs.day1_one_gpu_to_many import collectives as mine
from shardlab import show
from shardlab.observe.benchmark import (
    BUILT_IN,
    OPS,
    OPS_ON_BLOCKS,
    SUFFIXES,
    parse_bytes,
    problem,
    sizes_between,
    time_in_turns,
)
from shardlab.ranks import TorchrunRank, torchrun_ranks

KIB = 2**10
GB_PER_S = 1e9


# --- The contenders ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Contender:
    """One way to do an operation.

    Attributes:
        name: in the table.
        impl: ``"mine"`` or ``"torch"``.
        call: takes the arguments that `problem` makes.
    """

    name: str
    impl: str
    call: Callable[..., object]


def contenders(op: str, impls: Sequence[str]) -> list[Contender]:
    """Who competes in an operation, yours first."""
    names = mine.ALL_REDUCE_ALGORITHMS if op == "all_reduce" else (op,)
    everyone = [Contender(name, "mine", getattr(mine, name)) for name in names]
    everyone.append(Contender(f"torch ({dist.get_backend()})", "torch", BUILT_IN[op]))
    return [contender for contender in everyone if contender.impl in impls]


# --- Measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measurement:
    """One row of the table. ``seconds`` is None where the result was wrong: there is nothing to time."""

    op: str
    algorithm: str
    impl: str
    num_bytes: int
    wrong: int
    seconds: float | None
    algbw: float | None  # bytes/s
    busbw: float | None  # bytes/s


def measure(op: str, num_bytes: int, rivals: Sequence[Contender], me: TorchrunRank) -> list[Measurement]:
    """Check every contender at one size, then time the right ones in turns: what else the machine does meets all."""
    numel = num_bytes // 4  # float32
    if op in OPS_ON_BLOCKS:
        numel -= numel % me.world_size
    wrong, arguments = {}, {}
    for rival in rivals:
        task = problem(op, numel)
        rival.call(*task.arguments)
        wrong[rival.name] = task.count_wrong()
        arguments[rival.name] = task.arguments
        for tensor in task.result:
            tensor.zero_()  # sums of zeros stay finite however often they are repeated
    right = [rival for rival in rivals if not wrong[rival.name]]
    seconds = time_in_turns({rival.name: (rival.call, arguments[rival.name]) for rival in right})
    return [_measurement(op, rival, 4 * numel, wrong[rival.name], seconds.get(rival.name), me) for rival in rivals]


def sweep(ops: Sequence[str], sizes: Sequence[int], impls: Sequence[str], me: TorchrunRank) -> list[Measurement]:
    """All operations at all sizes, with a bar on rank 0's terminal."""
    rows = []
    with show.progress("measuring", len(ops) * len(sizes)) as advance:
        for op in ops:
            rivals = contenders(op, impls)
            for size in sizes:
                rows += measure(op, size, rivals, me)
                advance()
    return rows


def _measurement(
    op: str, rival: Contender, num_bytes: int, wrong: int, seconds: float | None, me: TorchrunRank
) -> Measurement:
    algbw = num_bytes / seconds if seconds else None
    busbw = mine.bus_bandwidth(op, num_bytes, seconds, me.world_size) if seconds else None
    return Measurement(op, rival.name, rival.impl, num_bytes, wrong, seconds, algbw, busbw)


# --- What it means ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """alpha (seconds per message) and beta (seconds per byte) of one of your algorithms."""

    algorithm: str
    alpha: float
    beta: float


def fit_mine(rows: Sequence[Measurement], ranks: int) -> list[Fit]:
    """One fit for each of your algorithms that was timed at two sizes or more."""
    fits = []
    for name in dict.fromkeys(row.algorithm for row in rows if row.impl == "mine"):
        timed = [row for row in rows if row.algorithm == name and row.seconds]
        if len(timed) > 1 and ranks > 1:
            sizes, seconds = [row.num_bytes for row in timed], [row.seconds for row in timed]
            fits.append(Fit(name, *mine.fit_alpha_beta(sizes, seconds, name, ranks)))
    return fits


def measured_crossover(rows: Sequence[Measurement]) -> int | None:
    """The size from which on your ring is the fastest of your all-reduces, None if it never is."""
    winners = {}
    for row in rows:
        if row.impl == "mine" and row.seconds:
            best = winners.get(row.num_bytes)
            winners[row.num_bytes] = row if best is None or row.seconds < best.seconds else best
    crossover = None
    for size in sorted(winners, reverse=True):
        if winners[size].algorithm != "ring_all_reduce":
            break
        crossover = size
    return crossover


def predicted_crossover(ring: Fit, ranks: int) -> int | None:
    """The same by the model, with the ring's alpha and beta, to the next power of two; None: not up to 1 TiB."""
    sizes = (2**power for power in range(41))
    choices = ((size, mine.fastest_algorithm(size, ranks, ring.alpha, ring.beta)) for size in sizes)
    return next((size for size, name in choices if name == "ring_all_reduce"), None)


def in_words(num_bytes: int) -> str:
    """4096 as "4 KiB"."""
    for suffix, unit in reversed(SUFFIXES.items()):
        if num_bytes >= unit:
            return f"{num_bytes / unit:.3g} {suffix}iB"
    return f"{num_bytes} B"


# --- Table, figure, verdict -------------------------------------------------------------------------------------------


def print_table(op: str, rows: Sequence[Measurement], me: TorchrunRank) -> None:
    """The columns of nccl-tests, and each time in multiples of torch's. The fastest at a size has a star."""
    best = {}
    for row in rows:
        if row.seconds:
            best[row.num_bytes] = min(row.seconds, best.get(row.num_bytes, row.seconds))
    torchs = {row.num_bytes: row.seconds for row in rows if row.impl == "torch"}
    cells = []
    for row in rows:
        star = "*" if row.seconds and row.seconds == best[row.num_bytes] else ""
        ratio = row.seconds / torchs[row.num_bytes] if row.seconds and torchs.get(row.num_bytes) else None
        cells.append(
            [
                row.num_bytes,
                row.num_bytes // 4,
                "float",
                f"{row.algorithm} {star}",
                round(1e6 * row.seconds) if row.seconds else "-",
                f"{row.algbw / GB_PER_S:.3f}" if row.algbw is not None else "-",
                f"{row.busbw / GB_PER_S:.3f}" if row.busbw is not None else "-",
                row.wrong,
                f"{ratio:.2f}" if ratio else "-",
            ]
        )
    columns = ["size (B)", "count", "type", "algorithm", "time (us)", "algbw (GB/s)", "busbw (GB/s)", "#wrong"]
    show.table(f"{op}, {me.world_size} ranks, {dist.get_backend()} on {me.device.type}", [*columns, "x torch"], cells)


def say_what_it_means(fits: Sequence[Fit], crossover: int | None, predicted: int | None) -> None:
    for fit in fits:
        bandwidth = f"{1 / fit.beta / GB_PER_S:.2f} GB/s" if fit.beta else "no limit seen"
        print(
            f"{fit.algorithm}: alpha {1e6 * fit.alpha:.0f} us per message, beta {1e9 * fit.beta:.3f} ns per byte ",
            end="",
        )
        print(f"({bandwidth})")
    if predicted is not None:
        where = f"from {in_words(crossover)} on" if crossover is not None else "nowhere in this sweep"
        print(f"The ring is the fastest of yours {where}; its alpha and beta say from {in_words(predicted)} on.")


def draw(rows: Sequence[Measurement], fits: Sequence[Fit], crossover: int | None, me: TorchrunRank) -> None:
    """Measured times with the fitted model behind them, and bus bandwidth, for the operation swept first."""
    import matplotlib.pyplot as plt

    show.use_style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.5))
    models = {fit.algorithm: fit for fit in fits}
    for index, name in enumerate(dict.fromkeys(row.algorithm for row in rows)):
        timed = [row for row in rows if row.algorithm == name and row.seconds]
        sizes = [row.num_bytes for row in timed]
        colour = show.rank_colour(index)
        left.plot(sizes, [1e3 * row.seconds for row in timed], "o", color=colour, label=name)
        if name in models:
            model = models[name]
            times = [mine.predict_seconds(name, size, me.world_size, model.alpha, model.beta) for size in sizes]
            left.plot(sizes, [1e3 * seconds for seconds in times], "--", color=colour, linewidth=1.2)
        right.plot(sizes, [row.busbw / GB_PER_S for row in timed], "o-", color=colour, label=name)
    if crossover is not None:
        left.axvline(crossover, color="#888888", linewidth=1)
        at = {"xycoords": ("data", "axes fraction"), "rotation": 90, "ha": "right", "fontsize": 9}
        left.annotate("the ring wins from here", (crossover, 0.03), color="#555555", **at)
    left.plot([], [], "--", color="#888888", linewidth=1.2, label="fitted model")
    left.set(title=f"{rows[0].op} on {me.world_size} ranks", ylabel="ms", xscale="log", yscale="log")
    right.set(title="What each link carried", ylabel="busbw (GB/s)", xscale="log", ylim=(0, None))
    ticks = sorted({row.num_bytes for row in rows})[::2]
    for axes in (left, right):
        axes.set_xticks(ticks, [in_words(tick) for tick in ticks])
        axes.minorticks_off()
    left.legend(fontsize=9)
    show.save_figure(figure, "results/collectives.svg")
    plt.close(figure)


def find_fault(wrong: Sequence[Measurement], me: TorchrunRank) -> str:
    """What is wrong with the results, in a sentence; empty if nothing is."""
    if not wrong:
        return ""
    first = wrong[0]
    return (
        f"WRONG: {first.algorithm} on {me.world_size} ranks has {first.wrong} wrong elements at {first.num_bytes:,} B; "
        f"{len(wrong)} rows are wrong in all. shardlab test 1.3 says more."
    )


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impl", nargs="+", choices=("mine", "torch"), default=["mine", "torch"], help="who competes")
    options.add_argument("--op", nargs="+", choices=OPS, default=["all_reduce"], help="operations (all_reduce)")
    options.add_argument("--min-bytes", type=parse_bytes, default="4K", help="smallest tensor (4K)")
    options.add_argument("--max-bytes", type=parse_bytes, default="64M", help="largest tensor (64M)")
    options.add_argument("--step-factor", type=int, default=4, help="from one size to the next (4)")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with torchrun_ranks() as me:
        smallest = 4 * me.world_size  # one float32 for each rank
        if not smallest <= chosen.min_bytes <= chosen.max_bytes or chosen.step_factor < 2:
            options.error(f"need {smallest} <= --min-bytes <= --max-bytes on {me.world_size} ranks, --step-factor >= 2")
        sizes = sizes_between(chosen.min_bytes, chosen.max_bytes, chosen.step_factor)
        rows = sweep(chosen.op, sizes, chosen.impl, me)
        fits = fit_mine(rows, me.world_size)
        ring = next((fit for fit in fits if fit.algorithm == "ring_all_reduce"), None)
        crossover = measured_crossover([row for row in rows if row.op == "all_reduce"])
        predicted = predicted_crossover(ring, me.world_size) if ring else None
        wrong = [row for row in rows if row.wrong]
        for op in chosen.op:
            print_table(op, [row for row in rows if row.op == op], me)
        records = {"rows": [asdict(row) for row in rows], "fits": [asdict(fit) for fit in fits]}
        crossovers = {"measured_crossover": crossover, "predicted_crossover": predicted}
        path = show.write_results("collectives", {"ranks": me.world_size, **records, **crossovers})
        if me.is_main:
            draw([row for row in rows if row.op == chosen.op[0]], fits, crossover, me)
            say_what_it_means(fits, crossover, predicted)
            print(find_fault(wrong, me) or f"Every result was right. Written: {path}, results/collectives.svg")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
