"""Lesson 1.2 at work: one training step, made faster one change at a time.

A ladder. The first rung trains a small Llama on real text the way a first version does: all attention scores in memory,
float32, one sequence at a time. Each further rung changes one thing and is measured: seconds per step, tokens/s, peak
bytes of tensors, and the losses, which must stay those of the first rung (relative tolerance 2e-5 in float32, 2e-2
in 16 bits; a curve that drifts: exit code 1). A rung that is 3 % faster is kept (a star), and the next one
builds on it; one that is not stays in the table. `ladder_single_gpu.py` beside this file has the rungs.

What to expect is different on every machine, and that is the point of measuring. Attention without stored scores wins
everywhere, because it saves memory traffic. bfloat16 wins where the processor has units for it; on a CPU without (no
AMX, no AVX512-BF16) its products are many times slower, which is measured first, and the rung is skipped with the
number. torch.compile takes a while the first time; on a CPU it needs a C++ compiler too, 15 to 60 s of it, so there
it has to be asked for. A checkpoint of each block is there for memory: it costs a second forward, about a third of the
arithmetic, and no rung builds on it. On a busy machine small differences are noise: look at the last line, which times
the beginning and the end in turns.

Tier 1, a laptop CPU (one core of it; half a minute, a busy one 50 s; --compile takes 20 s more the first time). Seen on
a busy AMD EPYC without AVX512: 2.8 to 4 times faster at the end, nearly all of it from attention and the loss.

    python labs/day1_one_gpu_to_many/run_single_gpu.py --compile
    python labs/day1_one_gpu_to_many/run_single_gpu.py --impl torch
    torchrun --standalone --nproc-per-node 4 labs/day1_one_gpu_to_many/run_single_gpu.py

Under torchrun rank 0 climbs alone and the others wait for its verdict: the lesson is about one device, and ranks that
measure side by side would measure each other.

Tier 2, one GPU (not run). The defaults are larger there: 4,096 tokens, 6 layers, 768 wide. Expect attention and
bfloat16 to bring most, then the larger micro-batch and torch.compile, which launch fewer kernels.

    python labs/day1_one_gpu_to_many/run_single_gpu.py --sequence 8192 --batch 8

Tier 3, a cluster: run it on one GPU of each kind before you plan, here under Slurm (not run).

    srun --nodes 1 --gpus 1 python labs/day1_one_gpu_to_many/run_single_gpu.py

Writes results/single_gpu.json and results/single_gpu.svg.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import fields, replace

import torch
import torch.distributed as dist

from labs.day1_one_gpu_to_many.ladder_single_gpu import (
    COMPILE_ON,
    PATIENCE,
    SIZE_ON,
    TOLERANCE,
    Recipe,
    Result,
    Size,
    accumulate_with_torch,
    all_rungs,
    climb,
    matmul_rate,
    step_flops,
    time_in_turns,
)
from shardlab import show
from shardlab.data.cache import cache_folder
from shardlab.observe import mfu
from shardlab.ranks import torchrun_ranks

MIB = 2**20
SIZES = {
    "sequence": "tokens per sequence",
    "hidden": "width of the model",
    "layers": "blocks",
    "heads": "attention heads",
    "batch": "sequences per step",
    "steps": "steps per rung; the first one warms up",
    "chunk": "tokens per chunk of the loss",
}
DEADLINE = 900.0  # seconds that the other ranks wait for rank 0


def climb_and_tell(size: Size, chosen: argparse.Namespace, device: torch.device) -> list[Result]:
    """All rungs of the implementations chosen, with a bar."""
    impls = {"any", *chosen.impl}
    rungs = [rung for rung in all_rungs(size) if rung.impl in impls]
    if not (COMPILE_ON[device.type] if chosen.compile is None else chosen.compile):
        rungs = [rung for rung in rungs if "compiled" not in rung.change]
    start = None if "mine" in impls else Recipe(accumulate=accumulate_with_torch)
    results = []
    with show.progress("climbing", len(rungs)) as advance:
        for result in climb(size, device, rungs, start, chosen.patience):
            results.append(result)
            advance()
    return results


def print_table(results: Sequence[Result], size: Size, rate: float, device: torch.device) -> None:
    work = step_flops(size)
    first = results[0]
    rows = []
    for result in results:
        if result.skipped:
            rows.append([result.name, result.built_on, *["-"] * 7])
            continue
        rows.append(
            [
                result.name + (" *" if result.kept else ""),
                result.built_on,
                f"{1e3 * result.seconds:.1f}",
                f"{result.tokens_per_second:,.0f}",
                f"{first.seconds / result.seconds:.2f}",
                f"{result.peak_bytes / MIB:.1f}",
                f"{result.losses[-1]:.5f}",
                f"{result.drift:.1e}",
                f"{100 * mfu(work, result.seconds, rate):.0f}",
            ]
        )
    millions = size.config.parameters / 1e6
    what = f"{millions:.1f} M parameters, {size.batch} x {size.sequence} tokens a step on {device.type}"
    columns = ["rung", "changes", "step (ms)", "tokens/s", "x start", "peak (MiB)", "loss", "drift", "MFU (%)"]
    show.table(f"{what}, matrix products at {rate / 1e9:,.0f} GFLOP/s", columns, rows)
    for result in results:
        if result.skipped:
            print(f"{result.name} was skipped: {result.skipped}")


def draw(results: Sequence[Result]) -> None:
    """A bar per rung: seconds per step, and peak memory."""
    import matplotlib.pyplot as plt

    show.use_style()
    ran = [result for result in results if not result.skipped]
    colours = [show.rank_colour(0) if result.kept else "#bbbbbb" for result in ran]
    names = [result.name for result in ran]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 1 + 0.4 * len(ran)), sharey=True)
    for axes, values, unit in (
        (left, [1e3 * result.seconds for result in ran], "ms per step"),
        (right, [result.peak_bytes / MIB for result in ran], "peak MiB of tensors"),
    ):
        bars = axes.barh(names, values, color=colours)
        axes.bar_label(bars, fmt="%.0f", padding=3, fontsize=9)
        axes.set(xlabel=unit, xlim=(0, 1.12 * max(values)))
        axes.grid(False, axis="y")
    left.invert_yaxis()
    left.set(title="Each rung changes one thing of the fastest so far (blue)")
    show.save_figure(figure, "results/single_gpu.svg")
    plt.close(figure)


def find_fault(results: Sequence[Result]) -> str:
    """The first loss curve that drifted, in a sentence; empty if none did."""
    for result in results:
        if not result.is_right:
            allowed = TOLERANCE[result.recipe.precision]
            return (
                f"WRONG: with {result.name} the losses drift by {result.drift:.1e} from those of the first rung, "
                f"allowed are {allowed:.0e}: {[round(loss, 4) for loss in result.losses]} against "
                f"{[round(loss, 4) for loss in results[0].losses]}. shardlab test 1.2 says more."
            )
    return ""


def records(results: Sequence[Result]) -> list[dict]:
    """The results as plain data, without the recipes, which hold functions."""
    names = [field.name for field in fields(Result) if field.name != "recipe"]
    return [{name: getattr(result, name) for name in names} for result in results]


def run(size: Size, chosen: argparse.Namespace, device: torch.device) -> bool:
    """The whole of it, on one rank. Whether the loss curve stayed where it was."""
    rate = max(matmul_rate(precision, device) for precision in TOLERANCE)
    results = climb_and_tell(size, chosen, device)
    first, last = results[0], [result for result in results if result.kept][-1]
    began, ended = time_in_turns(size, [first.recipe, last.recipe], device)
    rate = max(rate, *(matmul_rate(precision, device) for precision in TOLERANCE))
    print_table(results, size, rate, device)
    draw(results)
    path = show.write_results(
        "single_gpu",
        {"rungs": records(results), "matmul_flops_per_second": rate, "step_flops": step_flops(size)}
        | {"began_seconds": began, "ended_seconds": ended},
    )
    print(
        f"In turns once more: {1e3 * began:.1f} ms per step as it began, {1e3 * ended:.1f} ms as it ends with "
        f'"{last.name}": {began / ended:.2f} times faster.'
    )
    fault = find_fault(results)
    print(fault or f"Every loss curve stayed where it was. Written: {path}, results/single_gpu.svg")
    return not fault


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impl", nargs="+", choices=("mine", "torch"), default=["mine", "torch"], help="whose rungs")
    for name, what in SIZES.items():
        defaults = ", ".join(f"{getattr(size, name)} on {kind}" for kind, size in SIZE_ON.items())
        options.add_argument(f"--{name}", type=int, help=f"{what} ({defaults})")
    options.add_argument(
        "--patience", type=float, default=PATIENCE, help="skip a precision this many times slower than float32 (5)"
    )
    options.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, help="with the rung torch.compile (on a GPU yes, else no)"
    )
    chosen = options.parse_args()
    torch.set_num_threads(1)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_folder() / "inductor"))  # else it stays in /tmp
    with torchrun_ranks(DEADLINE) as me:
        given = {name: getattr(chosen, name) for name in SIZES if getattr(chosen, name) is not None}
        size = replace(SIZE_ON[me.device.type], **given)
        try:
            check(size)
        except ValueError as error:
            options.error(str(error))
        right = torch.ones((), device=me.device)
        if me.is_main:
            right.fill_(run(size, chosen, me.device))
        dist.broadcast(right, 0)
    return 0 if right else 1


def check(size: Size) -> None:
    """Raises ValueError if there is no such model, batch or number of steps."""
    size.config  # noqa: B018  # it looks at its fields
    if min(size.batch, size.chunk) < 1 or size.steps < 2:
        raise ValueError(f"need a batch and a chunk of 1 or more and 2 steps or more, got {size}")


if __name__ == "__main__":
    sys.exit(main())
