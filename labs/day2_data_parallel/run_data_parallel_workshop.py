"""Lesson 2.4 at work: every strategy of the day on one model, against theory, and which one to take.

Your `measure_strategy` measures peak memory, traffic, tokens/s and communication share, from which follows the scaling
efficiency. Losses must agree, and traffic must be that of theory within 5 % (else: exit code 1). Then `recommend` says
what to take as memory gets scarce. Under plain python the script starts its ranks itself, one number of ranks after the
other; under torchrun it measures at the number of ranks it is given.

Tier 1, a laptop CPU (2 cores, gloo). Expect memory and traffic on the theory lines, and time that says little: ranks
share two cores, and their messages go through memory. `--link 0.2` puts a modelled link of 0.2 GB/s under them.

    python labs/day2_data_parallel/run_data_parallel_workshop.py
    python labs/day2_data_parallel/run_data_parallel_workshop.py --impl mine torch --ranks 1 2 3 --kind weak
    torchrun --standalone --nproc-per-node 4 labs/day2_data_parallel/run_data_parallel_workshop.py

Tier 2, one multi-GPU box (NCCL, a GPU for each rank). The same lines with a model worth it; memory and traffic as on
the CPU to the byte, time now real. Not run.

    python labs/day2_data_parallel/run_data_parallel_workshop.py --ranks 1 2 4 8 --hidden 2048 --layers 16 --rows 64

Tier 3, a cluster: torchrun on every node, here under Slurm, once for each number of nodes. Not run.

    srun --nodes 4 --ntasks-per-node 1 torchrun --nnodes 4 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint $(scontrol show hostnames | head -1):29500 \\
        labs/day2_data_parallel/run_data_parallel_workshop.py --hidden 4096 --layers 32 --rows 256

Writes results/data_parallel_workshop.json, .svg and .html: the report is one file that needs no network.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from html import escape
from pathlib import Path

import torch.distributed as dist
from matplotlib.figure import Figure

from labs.day2_data_parallel import data_parallel_workshop as workshop
from labs.day2_data_parallel.data_parallel_workshop import Choice, Gpu, ModelBytes
from labs.day2_data_parallel.strategies_data_parallel_workshop import (
    CONTENDERS,
    DEEPSPEED_MISSING,
    IMPLEMENTATIONS,
    Contender,
    contenders,
    measure_contenders,
    model_bytes,
)
from shardlab import show
from shardlab.models import TransformerConfig
from shardlab.ranks import run_ranks, torchrun_ranks
from shardlab.show.results import evidence
from shardlab.tour import Job
from shardlab.tour.figures import data_uri
from shardlab.tour.progress import follow

MIB, GB = 2**20, 1e9
LOSSES_WITHIN = 1e-5  # relative: the same sums in another order
TRAFFIC_WITHIN = 0.05
TIMEOUT_SECONDS = 600.0
VOCABULARY = 64  # small: a tied embedding and the outermost layer travel more or less often than theory has it
BY_NAME = {contender.name: contender for contender in CONTENDERS}


@dataclass(frozen=True)
class Result:
    """One strategy at one number of ranks."""

    name: str
    measured: workshop.Measurement

    @property
    def contender(self) -> Contender:
        return BY_NAME[self.name]


# --- Measuring --------------------------------------------------------------------------------------------------------


def measure(chosen: argparse.Namespace, job: Job) -> list[Result]:
    """At every number of ranks, the smallest first. The ranks of torchrun measure themselves; else rank 0 starts some.

    One rank is this process: a lab that is not written yet is noticed before any other is started.
    """
    world = dist.get_world_size()
    results = []
    for ranks in chosen.ranks if world == 1 else [world]:
        its_job = replace(job, rows=job.rows * ranks) if chosen.kind == "weak" else job
        title = f"{ranks} rank{'s' * (ranks > 1)}"
        count, link = len(contenders(chosen.impl)), chosen.link and chosen.link * GB
        with tempfile.TemporaryDirectory() as folder, follow(Path(folder) / "done", title, count):
            arguments = (chosen.impl, its_job, chosen.steps, link, Path(folder) / "done")
            if ranks == world:
                found = measure_contenders(*arguments)
            else:
                found = run_ranks(measure_contenders, ranks, *arguments, timeout=TIMEOUT_SECONDS)[0]
        results += [Result(name, measured) for name, measured in found]
    return results


# --- Theory -----------------------------------------------------------------------------------------------------------


def activations_of_a_row(results: Sequence[Result], job: Job) -> float:
    """Bytes of activations for each row of a rank: what the smallest run of DDP held beyond its states."""
    runs = [result for result in results if result.contender.theory == "DDP" and result.contender.impl == "mine"]
    if not runs:
        return 0.0
    smallest = min(runs, key=lambda result: result.measured.ranks).measured
    rows = smallest.tokens // job.config.sequence // smallest.ranks
    return max(0.0, smallest.peak_bytes - states(job, 0).parameters * 4) / rows


def states(job: Job, activations: float) -> ModelBytes:
    return model_bytes(job.config, round(activations))


def expected(result: Result, job: Job, per_row: float) -> tuple[int, int]:
    """Memory and traffic that theory says: activations as `activations_of_a_row`, all else by arithmetic."""
    ranks, contender = result.measured.ranks, result.contender
    rows = result.measured.tokens // job.config.sequence // ranks
    model = states(job, per_row * rows)
    sent = workshop.expected_traffic(contender.theory, model, ranks)
    if contender.journeys:
        sent = contender.journeys * model.parameters * (ranks - 1) // ranks
    return workshop.expected_memory(contender.theory, model, ranks), sent


def find_fault(results: Sequence[Result], job: Job) -> str:
    """What is wrong, in a sentence; empty if nothing is."""
    for result in results:
        first = next(other for other in results if other.measured.ranks == result.measured.ranks)
        pairs = zip(result.measured.losses, first.measured.losses, strict=True)
        gap = max(abs(own / right - 1) for own, right in pairs)
        if not gap <= LOSSES_WITHIN:
            return f"{result.name}, {result.measured.ranks} ranks: losses are off those of {first.name} by {gap:.1e}"
        sent = expected(result, job, 0)[1]
        off = abs(result.measured.traffic - sent) / max(sent, 1)
        if result.contender.impl != "deepspeed" and off > TRAFFIC_WITHIN:
            return (
                f"{result.name}, {result.measured.ranks} ranks: sends {result.measured.traffic:,} bytes a step, by "
                f"theory {sent:,}: off by {off:.0%}"
            )
    return ""


# --- Table and figure -------------------------------------------------------------------------------------------------

COLUMNS = ("strategy", "ranks", "peak MiB", "theory", "sent MiB", "theory", "tokens/s", "communication", "efficiency")


def table_rows(results: Sequence[Result], job: Job) -> list[tuple]:
    per_row = activations_of_a_row(results, job)
    efficiency = {}
    for name in dict.fromkeys(result.name for result in results):
        for row in workshop.scaling_table([result.measured for result in results if result.name == name]):
            efficiency[name, row.ranks] = row.efficiency
    rows = []
    for result in sorted(results, key=lambda result: result.measured.ranks):  # stable: strategies keep their order
        measured, (memory, sent) = result.measured, expected(result, job, per_row)
        rows.append(
            (
                result.name,
                measured.ranks,
                f"{measured.peak_bytes / MIB:.1f}",
                f"{memory / MIB:.1f}",
                f"{measured.traffic / MIB:.2f}",
                f"{sent / MIB:.2f}",
                round(measured.tokens_per_second),
                f"{measured.communication_share:.0%}",
                f"{efficiency[result.name, measured.ranks]:.2f}",
            )
        )
    return rows


def draw(results: Sequence[Result], job: Job, kind: str) -> Figure:
    """Memory and traffic by ranks, on the lines of theory; tokens/s under the line of the best case."""
    show.use_style()
    figure = Figure(figsize=(14, 4.6))
    memory, traffic, speed = figure.subplots(1, 3)
    per_row = activations_of_a_row(results, job)
    ranks = sorted({result.measured.ranks for result in results})
    for place, theory in enumerate(workshop.STRATEGIES[1:]):
        colour = show.rank_colour(place)
        of_theory = [result for result in results if result.contender.theory == theory]
        if not of_theory:
            continue
        lines = [expected(of_rank(of_theory, n), job, per_row) for n in ranks]
        memory.plot(ranks, [held / MIB for held, _ in lines], color=colour, label=f"{theory}, theory")
        model = states(job, 0)
        sent = [workshop.expected_traffic(theory, model, n) / MIB for n in ranks]
        traffic.plot(ranks, sent, color=colour, linewidth=2 + 3 * (theory == "DDP"), alpha=0.6)
        for name in dict.fromkeys(result.name for result in of_theory):
            runs = [result.measured for result in of_theory if result.name == name]
            marker = {"mine": "o", "torch": "s", "deepspeed": "^"}[BY_NAME[name].impl]
            where = [run.ranks for run in runs]
            look = {"color": colour, "marker": marker, "linestyle": "none", "fillstyle": "none"}
            memory.plot(where, [run.peak_bytes / MIB for run in runs], **look)
            traffic.plot(where, [run.traffic / MIB for run in runs], **look)
            speed.plot(where, [run.tokens_per_second for run in runs], **(look | {"linestyle": "-", "linewidth": 1}))
    alone = [result.measured for result in results if result.measured.ranks == ranks[0]]
    best = max(run.tokens_per_second for run in alone) / ranks[0]
    speed.plot(ranks, [best * n for n in ranks], color="grey", linewidth=1, label="best case")
    memory.set(title="Memory of a rank", ylabel="MiB at the peak", ylim=(0, None))
    traffic.set(title="Sent by a rank in a step", ylabel="MiB", ylim=(0, None))
    speed.set(title=f"Speed, {kind} scaling", ylabel="tokens/s of all ranks", ylim=(0, None))
    for axes in (memory, traffic, speed):
        axes.set_xlabel("ranks")
        axes.set_xticks(ranks)
    memory.legend(fontsize=9)
    speed.legend(fontsize=9)
    traffic.plot([], [], "o", color="grey", fillstyle="none", label="yours")
    traffic.plot([], [], "s", color="grey", fillstyle="none", label="torch")
    traffic.plot([], [], "^", color="grey", fillstyle="none", label="DeepSpeed")
    traffic.legend(fontsize=9)
    return figure


def of_rank(results: Sequence[Result], ranks: int) -> Result:
    return next(result for result in results if result.measured.ranks == ranks)


# --- Which one to take ------------------------------------------------------------------------------------------------


def recommendations(results: Sequence[Result], job: Job, bandwidth: float) -> list[tuple[str, Choice]]:
    """What to take for the measured model as memory gets scarce, and as the link gets slow: (situation, choice)."""
    ranks = max(result.measured.ranks for result in results)
    smallest = min(results, key=lambda result: result.measured.ranks).measured
    per_token = smallest.ranks * (1 - smallest.communication_share) / smallest.tokens_per_second
    last = of_rank(results, ranks).measured
    rows = last.tokens // job.config.sequence // ranks
    model = states(job, activations_of_a_row(results, job) * rows)
    seconds = per_token * last.tokens / ranks
    cases = []
    for theory in ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3"):
        room = workshop.expected_memory(theory, model, ranks)
        cases.append((room, bandwidth))
    cases.append((model.activations + model.layer, bandwidth))
    cases.append((cases[0][0], workshop.expected_traffic("DDP", model, ranks) / (2 * ranks * seconds) or bandwidth))
    return [
        (
            f"{ranks} ranks with {room / MIB:.1f} MiB each, links of {link / GB:.3g} GB/s",
            workshop.recommend(model, Gpu("a rank", room, seconds), ranks, link),
        )
        for room, link in cases
    ]


# --- Report -----------------------------------------------------------------------------------------------------------

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Data parallelism, measured</title>
<style>
:root {{ color-scheme: light; }}
body {{ margin: 0 auto; max-width: 64rem; padding: 2.5rem 1.25rem 4rem; background: #fff; color: #222;
  font: 17px/1.6 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }}
p, dd {{ max-width: 46rem; }}
.verdict {{ margin: 1.5rem 0; padding: .8rem 1.1rem; border-left: 5px solid {colour}; background: #F6F7F8; }}
img {{ display: block; width: 100%; height: auto; }}
.scroll {{ overflow-x: auto; }}
table {{ border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .4rem .6rem; border-bottom: 1px solid #E4E4E4; text-align: right; white-space: nowrap; }}
th:first-child, td:first-child {{ text-align: left; }}
dt {{ font-weight: 600; margin-top: .9rem; }}
dd {{ margin: 0; }}
footer {{ margin-top: 3rem; color: #777; font-size: .85rem; }}
</style>
</head>
<body>
<h1>Data parallelism, measured</h1>
<p>A Transformer of {parameters:,} parameters in fp32 with AdamW, {tokens}. Every strategy trains it to the same losses;
they differ in what a rank holds and what it sends.</p>
<div class="verdict">{verdict}</div>
<img alt="Memory, traffic and speed by ranks, with the lines of theory" src="{figure}">
<h2>All numbers</h2>
<div class="scroll">{table}</div>
<p><b>Memory</b>: bytes of live tensors at the fullest moment of a step, on the fullest rank. Theory: states by
arithmetic, activations as in the smallest run. It adds up what need not be there at one moment, so most strategies stay
a little below. Where states outweigh activations, torch's DDP holds the gradients twice, in its buckets as well, unless
<code>gradient_as_bucket_view=True</code>.
<b>Sent</b>: by the ring, in one step, without the set-up. <b>Communication</b>: what a step is shorter by when messages
are free. <b>Efficiency</b>: of the ideal speed-up over the fewest ranks. More ranks than cores cannot be faster: this
machine has {cores}.</p>
<h2>Which one to take</h2>
<dl>{choices}</dl>
<footer>{footer}</footer>
</body>
</html>
"""


def report(
    results: Sequence[Result], job: Job, kind: str, figure: Figure, choices: list[tuple[str, Choice]], fault: str
) -> str:
    facts = evidence()
    head = "".join(f"<th>{escape(name)}</th>" for name in COLUMNS)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(show.tables.format_cell(cell))}</td>" for cell in row) + "</tr>"
        for row in table_rows(results, job)
    )
    machine, versions = facts["machine"], facts["versions"]
    return PAGE.format(
        parameters=job.config.parameters,
        tokens=f"{job.rows * job.config.sequence:,} tokens a step" + (" and rank" if kind == "weak" else ""),
        verdict=escape(fault or verdict(results)),
        colour="#CC3311" if fault else "#228833",
        figure=data_uri(figure),
        table=f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>",
        cores=machine["cores"],
        choices="".join(
            f"<dt>{escape(situation)}: {escape(choice.strategy)}</dt><dd>{escape(choice.reason)}</dd>"
            for situation, choice in choices
        ),
        footer=escape(
            f"{facts['time']} · {machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB · "
            f"{machine['system']} · Python {versions['python']}, torch {versions['torch']} · "
            f"commit {facts['commit'] or 'unknown'} · {facts['command']}"
        ),
    )


def verdict(results: Sequence[Result]) -> str:
    names = {result.name for result in results}
    return f"{len(names)} strategies: all losses agree, all traffic is that of theory within {TRAFFIC_WITHIN:.0%}."


def parse() -> argparse.Namespace:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impl", nargs="+", choices=IMPLEMENTATIONS, default=list(IMPLEMENTATIONS), help="to compare")
    options.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4], help="under plain python (default 1 2 4)")
    options.add_argument("--kind", choices=["strong", "weak"], default="strong", help="one batch for all, or one each")
    options.add_argument("--hidden", type=int, default=128, help="width, a multiple of 4 heads (default 128)")
    options.add_argument("--layers", type=int, default=4, help="blocks (default 4)")
    options.add_argument("--sequence", type=int, default=32, help="tokens in a row (default 32)")
    options.add_argument("--rows", type=int, help="in a batch; weak: on a rank (default: about 12; 4)")
    options.add_argument("--steps", type=int, default=2, help="to time, of each kind (default 2)")
    options.add_argument("--link", type=float, help="modelled link under all messages, GB/s; CPU only (default: none)")
    options.add_argument("--bandwidth", type=float, default=1.25, help="for the recommendation, GB/s (default 1.25)")
    chosen = options.parse_args()
    numbers = [*chosen.ranks, chosen.layers, chosen.sequence, chosen.steps, chosen.bandwidth]
    numbers += [number for number in (chosen.rows, chosen.link) if number is not None]
    if not all(0 < number < float("inf") for number in numbers) or chosen.hidden < 8 or chosen.hidden % 8:
        options.error("need a width that is a multiple of 8, and every other number above 0")
    chosen.ranks = sorted(set(chosen.ranks))
    return chosen


def main() -> int:
    chosen = parse()
    with torchrun_ranks(timeout=TIMEOUT_SECONDS) as me:
        everyone = chosen.ranks if me.world_size == 1 else [me.world_size]
        rows = chosen.rows or (4 if chosen.kind == "weak" else -(-12 // max(everyone)) * max(everyone))
        if chosen.kind == "strong" and any(rows % ranks for ranks in everyone):
            sys.exit(f"--rows {rows} is not a multiple of {everyone} ranks")
        width = chosen.hidden
        config = TransformerConfig(VOCABULARY, width, chosen.layers, 4, 2, 8 * width // 3 // 8 * 8, chosen.sequence)
        job = Job(config, rows)
        results = measure(chosen, job)
        if not me.is_main:
            return 0
        if not results:
            sys.exit("nothing could be measured: no lesson of these strategies is written yet")
        fault = find_fault(results, job)
        figure, choices = draw(results, job, chosen.kind), recommendations(results, job, chosen.bandwidth * GB)
    show.table(
        f"One model of {config.parameters:,} parameters, {chosen.kind} scaling", COLUMNS, table_rows(results, job)
    )
    if "deepspeed" in chosen.impl and not any(result.contender.impl == "deepspeed" for result in results):
        print(DEEPSPEED_MISSING)
    for situation, choice in choices:
        print(f"{situation}: {choice.strategy}. {choice.reason}")
    data = {
        "results": [{"name": result.name, **vars(result.measured)} for result in results],
        "model": asdict(states(job, 0)),
        "recommendations": [{"situation": situation, **vars(choice)} for situation, choice in choices],
    }
    path = show.write_results("data_parallel_workshop", data)
    show.save_figure(figure, path.with_suffix(".svg"))
    show.write_text(path.with_suffix(".html"), report(results, job, chosen.kind, figure, choices, fault))
    print(fault or verdict(results), f"Written: {path}, {path.stem}.svg and {path.stem}.html")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
