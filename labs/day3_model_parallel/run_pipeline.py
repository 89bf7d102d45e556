"""Lesson 3.2 at work: a Transformer in as many stages as there are ranks, by every schedule, yours and torch's.

Two questions, one table each:

1. Do your schedules and those of torch.distributed.pipelining train alike? The same stages, the same batches, in turns;
   every loss is held against one process. A difference: exit code 1.
2. What do more micro-batches buy? The same work cut into 1, 2, 4, ... micro-batches: the bubble by the formula, as you
   simulate it, and as it is measured on ranks whose stages wait instead of computing. (Ranks that share cores would
   measure the cores. So on a laptop the second table says more about pipelines, the first one about code.)

Tier 1, a laptop CPU (2 cores, gloo; 4 ranks took 100 s while other work kept both cores busy). Expect equal losses,
about torch's time per step or less, and measured bubbles above the simulated ones, most of all for many small
micro-batches: each pays for its messages, and for whatever else the machine does.

    python labs/day3_model_parallel/run_pipeline.py
    torchrun --standalone --nproc-per-node 4 labs/day3_model_parallel/run_pipeline.py

Tier 2, one multi-GPU box (NCCL, one rank per GPU; not run by us). Make the model larger, so that a stage keeps its GPU
busy for longer than a message takes.

    torchrun --standalone --nproc-per-node 8 labs/day3_model_parallel/run_pipeline.py --layers 32 --hidden 2048

Tier 3, a cluster (not run by us): the same line on every node, here under Slurm. Stages on different nodes exchange one
activation per micro-batch, which is why the dimension that crosses nodes is often this one. The second table needs one
clock: run that on one machine.

    srun --nodes 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint $(scontrol show hostnames | head -1):29500 \\
        labs/day3_model_parallel/run_pipeline.py --layers 64 --hidden 4096

Writes results/pipeline.json, results/pipeline.svg, and results/pipeline_timelines.html, which plays every schedule.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage as TorchStage
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from labs.day3_model_parallel.pipeline import (
    Schedule,
    Timeline,
    draw,
    gpipe,
    interleaved,
    one_forward_one_backward,
    run_schedule,
    simulate,
    split_batch,
    transformer_pipeline,
)
from labs.day3_model_parallel.timed_pipeline import measure
from shardlab import show
from shardlab.models import TransformerConfig, build
from shardlab.observe import Traffic
from shardlab.ranks import TorchrunRank, torchrun_ranks

TOLERANCE = 1e-5  # relative, between losses: float32 sums in another order, some steps apart
CHUNKS = 2
NAMES = ("GPipe", "1F1B", "interleaved")
PLAY_SECONDS = 8.0


def make_schedule(name: str, ranks: int, micro_batches: int) -> Schedule | None:
    """None where there is none: the interleaved one wants a multiple of the ranks."""
    if name == "interleaved":
        return interleaved(ranks, micro_batches, CHUNKS) if micro_batches % ranks == 0 else None
    return {"GPipe": gpipe, "1F1B": one_forward_one_backward}[name](ranks, micro_batches)


# --- 1. Do they train alike? ------------------------------------------------------------------------------------------


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


@dataclass
class Trainer:
    """One implementation of one schedule, and what its steps gave."""

    name: str
    schedule: Schedule
    parameters: list[nn.Parameter]
    run: Callable[[Tensor, Tensor], Tensor | None]
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    sent_bytes: int = 0

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.SGD(self.parameters, lr=0.3, momentum=0.9)

    def step(self, inputs: Tensor, targets: Tensor) -> None:
        dist.barrier()
        start = time.perf_counter()
        with Traffic() as traffic:
            loss = self.run(inputs, targets)
        self.optimizer.step()
        if inputs.is_cuda:
            torch.cuda.synchronize()
        dist.barrier()
        self.seconds.append(time.perf_counter() - start)
        self.sent_bytes = traffic.sent_bytes()
        self.optimizer.zero_grad()
        told = torch.zeros((), device=inputs.device) if loss is None else loss.detach().clone()
        dist.all_reduce(told)  # one rank has it
        self.losses.append(told.item())


def mine(me: TorchrunRank, config: TransformerConfig, schedule: Schedule) -> Trainer:
    stage = transformer_pipeline(build(config).to(me.device), schedule)

    def run(inputs: Tensor, targets: Tensor) -> Tensor | None:
        return run_schedule(stage, schedule, split_batch(inputs, targets, schedule.micro_batches), token_loss)

    return Trainer("mine", schedule, list(stage.parameters()), run)


def torchs(me: TorchrunRank, config: TransformerConfig, schedule: Schedule) -> Trainer:
    """The same stages under torch's runtime. Its loss is the mean over micro-batches, which here are of one size."""
    chunks = transformer_pipeline(build(config).to(me.device), schedule).chunks
    stages = [TorchStage(module, int(number), schedule.stages, me.device) for number, module in chunks.items()]
    if len(stages) > 1:
        runtime = ScheduleInterleaved1F1B(stages, schedule.micro_batches, token_loss)
    else:
        kind = ScheduleGPipe if schedule.name == "GPipe" else Schedule1F1B
        runtime = kind(stages[0], schedule.micro_batches, token_loss)
    first, last = me.rank == schedule.placement[0], me.rank == schedule.placement[-1]

    def run(inputs: Tensor, targets: Tensor) -> Tensor | None:
        losses: list[Tensor] = []
        runtime.step(*([inputs] if first else []), **({"target": targets, "losses": losses} if last else {}))
        return torch.stack(losses).mean() if last else None

    return Trainer("torch", schedule, list(chunks.parameters()), run)


IMPLEMENTATIONS = {"mine": mine, "torch": torchs}


def compare(me: TorchrunRank, config: TransformerConfig, names: list[str], steps: int) -> list[dict]:
    """Train by every schedule and implementation on the same batches, taking turns in each step: whatever else the
    machine does meets all of them."""
    micro_batches = 2 * me.world_size
    schedules = [make_schedule(name, me.world_size, micro_batches) for name in NAMES]
    trainers = [IMPLEMENTATIONS[name](me, config, schedule) for schedule in schedules for name in names]
    batches = token_batches(me, config, 2 * micro_batches, steps)
    with show.progress("one step each, in turns", steps * len(trainers)) as advance:
        for inputs, targets in batches:
            for trainer in trainers:
                trainer.step(inputs, targets)
                advance()
    alone = one_process_losses(me, config, batches)
    milliseconds = {
        (trainer.name, trainer.schedule.name): 1e3 * statistics.median(trainer.seconds[1:]) for trainer in trainers
    }
    return [
        {
            "schedule": trainer.schedule.name,
            "implementation": trainer.name,
            "losses": trainer.losses,
            "gap": max(abs(loss / right - 1) for loss, right in zip(trainer.losses, alone, strict=True)),
            "milliseconds": milliseconds[trainer.name, trainer.schedule.name],
            "to_torch": milliseconds[trainer.name, trainer.schedule.name]
            / milliseconds.get(("torch", trainer.schedule.name), float("nan")),
            "sent_bytes": trainer.sent_bytes,
        }
        for trainer in trainers
    ]


def token_batches(me: TorchrunRank, config: TransformerConfig, rows: int, steps: int) -> list[tuple[Tensor, Tensor]]:
    """Sequences that count up by one, from a random start: easy to learn, the same on every rank."""
    starts = torch.randint(config.vocab, (steps, rows, 1), generator=torch.Generator().manual_seed(0))
    tokens = ((starts + torch.arange(config.sequence + 1)) % config.vocab).to(me.device)
    return [(each[:, :-1], each[:, 1:]) for each in tokens]


def one_process_losses(
    me: TorchrunRank, config: TransformerConfig, batches: list[tuple[Tensor, Tensor]]
) -> list[float]:
    """Losses of the whole model on whole batches, computed on rank 0 and told to all."""
    losses = torch.zeros(len(batches), device=me.device)
    if me.is_main:
        model = build(config).to(me.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)
        for step, (inputs, targets) in enumerate(batches):
            loss = token_loss(model(inputs), targets)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[step] = loss.detach()
    dist.broadcast(losses, 0)
    return losses.tolist()


# --- 2. What do more micro-batches buy? -------------------------------------------------------------------------------


def sweep(me: TorchrunRank, counts: list[int], batch_ms: float) -> tuple[list[dict], list[show.Timeline]]:
    """Bubble and makespan by schedule and number of micro-batches, and pictures of the last number below 9.

    Args:
        batch_ms: what a rank works on the whole batch, a third of it forward.
    """
    records, pictures = [], []
    drawn = max([count for count in counts if count < 9], default=counts[0])
    cases = [(name, count, make_schedule(name, me.world_size, count)) for count in counts for name in NAMES]
    cases = [case for case in cases if case[-1] is not None]
    with show.progress("more micro-batches", len(cases)) as advance:
        for name, count, schedule in cases:
            stages_per_rank = schedule.stages // me.world_size
            forward = batch_ms / 3 / count / stages_per_rank
            simulated = simulate(schedule, forward, 2 * forward)
            measured = measure(schedule, [forward] * schedule.stages, [2 * forward] * schedule.stages)
            records.append(
                {
                    "schedule": name,
                    "micro_batches": count,
                    "formula": (me.world_size - 1) / (stages_per_rank * count + me.world_size - 1),
                    "simulated": describe(simulated),
                    "measured": describe(measured),
                }
            )
            if count == drawn:
                pictures.append(draw(simulated, f"{schedule.name}, {count} micro-batches: simulated"))
                pictures.append(draw(measured, f"{schedule.name}, {count} micro-batches: measured"))
            advance()
    return records, pictures


def describe(timeline: Timeline) -> dict:
    return {"bubble": timeline.bubble, "ms": timeline.makespan, "in_flight": list(timeline.peak_in_flight)}


# --- Tables, figure, verdict ------------------------------------------------------------------------------------------


def print_tables(me: TorchrunRank, alike: list[dict], records: list[dict]) -> None:
    show.table(
        f"The same training, ranks: {me.world_size}",
        ["schedule", "implementation", "last loss", "off one process", "ms/step", "to torch", "sent by rank 0 (bytes)"],
        [
            [
                record["schedule"],
                record["implementation"],
                record["losses"][-1],
                record["gap"],
                record["milliseconds"],
                "-" if record["to_torch"] != record["to_torch"] else f"{record['to_torch']:.2f}x",
                record["sent_bytes"],
            ]
            for record in alike
        ],
    )
    show.table(
        f"The same work in more micro-batches, ranks: {me.world_size}",
        [
            "micro-batches",
            "schedule",
            "bubble, formula",
            "simulated",
            "measured",
            "ms, simulated",
            "measured ms",
            "in flight on rank 0",
        ],
        [
            [
                record["micro_batches"],
                record["schedule"],
                record["formula"],
                record["simulated"]["bubble"],
                record["measured"]["bubble"],
                record["simulated"]["ms"],
                record["measured"]["ms"],
                record["measured"]["in_flight"][0],
            ]
            for record in records
        ],
    )


def draw_figure(me: TorchrunRank, records: list[dict]) -> None:
    import matplotlib.pyplot as plt

    show.use_style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4))
    for number, name in enumerate(NAMES):
        own = [record for record in records if record["schedule"] == name]
        counts, colour = [record["micro_batches"] for record in own], show.rank_colour(number)
        style = {"color": colour, "linestyle": ("-", "--", "-.")[number]}
        left.plot(counts, [record["simulated"]["bubble"] for record in own], label=f"{name}, simulated", **style)
        left.plot(counts, [record["measured"]["bubble"] for record in own], "o", color=colour, label="measured")
        right.plot(counts, [record["measured"]["in_flight"][0] for record in own], marker="o", label=name, **style)
    left.set(title=f"Time lost, ranks: {me.world_size}", ylabel="bubble, share of all ranks' time", ylim=(0, None))
    right.set(title="What rank 0 holds at most", ylabel="forwards waiting for their backward", ylim=(0, None))
    for axes in (left, right):
        ticks = sorted({record["micro_batches"] for record in records})
        axes.set(xlabel="micro-batches", xscale="log")
        axes.set_xticks(ticks, labels=ticks)
        axes.minorticks_off()
        axes.legend(fontsize=9)
    show.save_figure(figure, "results/pipeline.svg")


def find_fault(alike: list[dict], records: list[dict]) -> str:
    """What is wrong with the results, in a sentence; empty if nothing is."""
    for record in alike:
        if not record["gap"] < TOLERANCE:
            return (
                f"{record['schedule']}, {record['implementation']}: losses are off one process by {record['gap']:.1e}, "
                f"allowed {TOLERANCE}"
            )
    for record in records:
        what = f"{record['schedule']}, {record['micro_batches']} micro-batches"
        simulated, measured = record["simulated"], record["measured"]
        if measured["in_flight"] != simulated["in_flight"]:
            return f"{what}: {measured['in_flight']} in flight on the ranks, simulated {simulated['in_flight']}"
        if measured["ms"] < 0.98 * simulated["ms"]:
            return f"{what}: {measured['ms']:.1f} ms is faster than can be, simulated {simulated['ms']:.1f} ms"
    return ""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--impl", nargs="+", choices=IMPLEMENTATIONS, default=["mine", "torch"], help="to compare")
    options.add_argument("--layers", type=int, default=8, help="blocks of the Transformer (default 8)")
    options.add_argument("--hidden", type=int, default=64, help="its width, a multiple of 8 (default 64)")
    options.add_argument("--steps", type=int, default=8, help="training steps (default 8)")
    options.add_argument(
        "--micro-batches",
        type=int,
        nargs="+",
        default=[1, 2, 4, 8, 16],
        help="of the second table (default 1 2 4 8 16)",
    )
    options.add_argument(
        "--batch-ms", type=float, default=240.0, help="work of a rank on a batch in the second table, ms (default 240)"
    )
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with torchrun_ranks() as me:
        fewest = max(1, CHUNKS * me.world_size - 2)  # every stage needs a layer; embedding and head are two more
        if chosen.layers < fewest or chosen.hidden < 8 or chosen.hidden % 8 or chosen.steps < 2:
            options.error(f"need {fewest} layers or more, a width divisible by 8 and 2 steps or more")
        if min(chosen.micro_batches) < 1 or not 0 < chosen.batch_ms < 60_000:
            options.error("need 1 micro-batch or more, and a batch of up to 60,000 ms")
        config = TransformerConfig(
            vocab=128, hidden=chosen.hidden, layers=chosen.layers, heads=4, kv_heads=2, ffn=3 * chosen.hidden,
            sequence=32, tied=False,
        )  # fmt: skip
        alike = compare(me, config, chosen.impl, chosen.steps)
        records, pictures = sweep(me, sorted(set(chosen.micro_batches)), chosen.batch_ms)
        print_tables(me, alike, records)
        path = show.write_results("pipeline", {"alike": alike, "micro_batches": records})
        fault = find_fault(alike, records)
        if me.is_main:
            draw_figure(me, records)
            note = "Forward, then backward, of each micro-batch: 2F0 is stage 2, forward, micro-batch 0."
            show.save_timelines("results/pipeline_timelines.html", "Schedules at work", pictures, note, PLAY_SECONDS)
            done = f"All losses are those of one process. Written: {path}, results/pipeline.svg"
            print(fault or f"{done}, results/pipeline_timelines.html")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
