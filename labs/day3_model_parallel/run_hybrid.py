"""Lesson 3.5 at work: one small Transformer on every layout of the ranks there are, and the search for a large one.

First who works with whom in the layout you name; then two tables:

1. The same training on every layout of these ranks: tp, pp and cp of 1 or 2, dp what is left, and the layout you name.
   Loss and gradient norm of every step are held against one process on the whole batch. A difference: exit code 1.
   What differs is what a rank holds (peak), what it sends, and the time. Ranks that share cores measure the cores:
   compare bytes, not milliseconds.
2. What `search` finds for a model of Llama's on a cluster of H100s: the fastest plans that fit, and why others do not.
   The best one is written down for TorchTitan, Megatron-LM and NeMo.

Tier 1, a laptop CPU (2 idle cores, gloo: 8 ranks took 38 s, with experts 46 s; half of that goes into starting 8
interpreters). Expect differences below 1e-6; dp8 to hold most, and cp beside dp to send most. With ep, dp with experts
is the yardstick of the layout you name.

    python labs/day3_model_parallel/run_hybrid.py
    torchrun --standalone --nproc-per-node 8 labs/day3_model_parallel/run_hybrid.py --tp 2 --pp 2 --dp 2
    torchrun --standalone --nproc-per-node 8 labs/day3_model_parallel/run_hybrid.py --dp 4 --tp 2 --ep 4 --zero 1

Tier 2, one multi-GPU box (NCCL, one rank per GPU; not run by us). Make the model large enough for a GPU.

    torchrun --standalone --nproc-per-node 8 labs/day3_model_parallel/run_hybrid.py --tp 2 --pp 2 --dp 2 \\
        --layers 16 --hidden 2048 --sequence 2048

Tier 3, a cluster (not run by us): the same line on every node, here under Slurm. Ranks are numbered tp, cp, dp, pp,
innermost first, so tp stays inside a node as long as it is no larger than one.

    srun --nodes 2 --ntasks-per-node 1 torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint $(scontrol show hostnames | head -1):29500 \\
        labs/day3_model_parallel/run_hybrid.py --tp 8 --pp 2 --layers 32 --hidden 4096 --sequence 4096

Writes results/hybrid.json, results/hybrid.svg, and results/hybrid_plan.json with the exports.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from itertools import product
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from labs.day1_one_gpu_to_many.scaling_math import GPUS, MODELS, in_gib
from labs.day3_model_parallel.hybrid import (
    GROUPS,
    HybridTrainer,
    LinkedCluster,
    ParallelLayout,
    Search,
    megatron_arguments,
    nemo_recipe,
    search,
    torchtitan_config,
)
from labs.day3_model_parallel.mixture_of_experts import MoEConfig
from shardlab import show
from shardlab.models import TransformerConfig, build
from shardlab.observe import PeakMemory, Traffic
from shardlab.ranks import TorchrunRank, torchrun_ranks

TOLERANCE = 1e-5  # relative, of losses and norms: float32 sums in another order
LEARNING_RATE, MAX_NORM = 0.3, 1.0
EXPERTS = 4
SHOWN = 6  # plans, and reasons, in the second table


# --- 1. Every layout --------------------------------------------------------------------------------------------------


def layouts_of(ranks: int) -> list[ParallelLayout]:
    """tp, pp and cp of 1 or 2, dp what is left."""
    sizes = [(tp, pp, cp) for tp, pp, cp in product((1, 2), repeat=3) if ranks % (tp * pp * cp) == 0]
    return [ParallelLayout(dp=ranks // (tp * pp * cp), tp=tp, pp=pp, cp=cp) for tp, pp, cp in sizes]


def make_batch(me: TorchrunRank, config: TransformerConfig, rows: int) -> tuple[Tensor, Tensor]:
    """Sequences that count up, with targets left out at their ends: replicas have unequal numbers of them."""
    generator = torch.Generator().manual_seed(0)
    starts = torch.randint(config.vocab, (rows, 1), generator=generator)
    tokens = (starts + torch.arange(config.sequence + 1)) % config.vocab
    lengths = torch.randint(2, config.sequence + 1, (rows, 1), generator=generator)
    targets = tokens[:, 1:].masked_fill(torch.arange(config.sequence) >= lengths, -100)
    return tokens[:, :-1].to(me.device), targets.to(me.device)


def one_process(
    me: TorchrunRank, config: TransformerConfig, batch: tuple[Tensor, Tensor], steps: int
) -> list[list[float]]:
    """Loss and norm of every step of the dense model, trained on rank 0 and told to all."""
    told = torch.zeros(steps, 2, dtype=torch.float64, device=me.device)
    if me.is_main:
        model = build(config).to(me.device)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
        inputs, targets = batch
        for step in range(steps):
            loss = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), ignore_index=-100)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), MAX_NORM)
            told[step, 0], told[step, 1] = loss.detach(), norm
            optimizer.step()
            optimizer.zero_grad()
    dist.broadcast(told, 0)
    return told.tolist()


def train(
    me: TorchrunRank,
    layout: ParallelLayout,
    config: TransformerConfig,
    batch: tuple[Tensor, Tensor],
    chosen: argparse.Namespace,
    experts: MoEConfig | None,
) -> dict:
    """Some steps on one layout; what they gave, held, sent and took, of the rank that has most."""
    with PeakMemory() as memory:
        trainer = HybridTrainer(
            layout, config, micro_batches=min(chosen.micro_batches, chosen.rows // layout.dp), zero=chosen.zero,
            experts=experts, max_norm=MAX_NORM, optimizer_class=torch.optim.SGD, lr=LEARNING_RATE, momentum=0.0,
        )  # fmt: skip
        results = [trainer.step(*batch)]
        memory.reset_peak()
        with Traffic() as traffic:
            results.append(trainer.step(*batch))
    seconds = []
    for _ in range(chosen.steps - 2):
        dist.barrier()
        start = time.perf_counter()
        results.append(trainer.step(*batch))
        seconds.append(time.perf_counter() - start)
    held = sum(parameter.nbytes for parameter in trainer.stage.parameters())
    most = torch.tensor(
        [memory.peak_bytes, held, traffic.sent_bytes(), statistics.median(seconds)], dtype=torch.float64
    )
    most = most.to(me.device)
    dist.all_reduce(most, dist.ReduceOp.MAX)
    trainer.close()
    peak, parameters, sent, slowest = most.tolist()
    return {
        "layout": str(layout) + (" + experts" if experts else ""),
        "results": results,
        "parameter_bytes": int(parameters),
        "peak_bytes": int(peak),
        "sent_bytes": int(sent),
        "milliseconds": 1e3 * slowest,
    }


def largest_gap(results: list[list[float]], expected: list[list[float]]) -> float:
    """The largest relative difference between two runs' losses and norms."""
    pairs = zip(results, expected, strict=True)
    return max(abs(got / right - 1) for ours, theirs in pairs for got, right in zip(ours, theirs, strict=True))


def compare(me: TorchrunRank, named: ParallelLayout | None, chosen: argparse.Namespace) -> list[dict]:
    """Train on every layout, and hold each against one process. With experts the yardstick is the first layout: dp."""
    config = TransformerConfig(
        vocab=128, hidden=chosen.hidden, layers=chosen.layers, heads=4, kv_heads=2, ffn=3 * chosen.hidden,
        sequence=chosen.sequence,
    )  # fmt: skip
    experts = MoEConfig(config.hidden, config.ffn // 2, EXPERTS, balance_coefficient=0, z_coefficient=0)
    batch = make_batch(me, config, chosen.rows)
    layouts = layouts_of(me.world_size)
    work: list[tuple[ParallelLayout, MoEConfig | None]] = [(layout, None) for layout in layouts]
    if named and named.ep == 1 and named not in layouts:
        work.insert(0, (named, None))
    if named and named.ep > 1:
        work += [(layouts[0], experts), (named, experts)]
    expected = one_process(me, config, batch, chosen.steps)
    records = []
    with show.progress("layouts", len(work)) as advance:
        for layout, with_experts in work:
            if chosen.rows < layout.dp:
                continue
            record = train(me, layout, config, batch, chosen, with_experts)
            if with_experts and not any("experts" in each["layout"] for each in records):
                expected = record["results"]
            records.append({**record, "gap": largest_gap(record["results"], expected)})
            advance()
    return records


# --- 2. A plan for a large model --------------------------------------------------------------------------------------


def print_plans(found: Search, title: str) -> None:
    by_layout = {plan.layout: (plan, reason) for plan, reason in reversed(found.rejected)}  # the first of each
    few = list(reversed(by_layout.values()))[:: max(1, len(by_layout) // SHOWN)][:SHOWN]
    show.table(
        f"{title}: {len(found.plans)} plans fit, fastest first",
        ["plan", "micro-batches", "GiB per GPU", "s/step", "between nodes"],
        [
            [
                str(each.plan),
                each.plan.micro_batches,
                each.memory.total / 2**30,
                each.seconds,
                ", ".join(each.placement.crossing) or "nothing",
            ]
            for each in found.plans[:SHOWN]
        ],
    )
    show.table(
        f"{title}: {len(found.rejected)} rejected, some of them",
        ["plan", "why not"],
        [[str(plan), reason] for plan, reason in few],
    )


def write_exports(found: Search, path: Path) -> None:
    """The best plan for the three frameworks; of those that cannot have it, why."""
    best, exports = found.plans[0].plan, {}
    for name, export in (("torchtitan", torchtitan_config), ("megatron", megatron_arguments), ("nemo", nemo_recipe)):
        try:
            exports[name] = export(best)
        except ValueError as error:
            exports[name] = str(error)
    path.write_text(json.dumps({"plan": str(best), **exports}, indent=2) + "\n")


def print_groups(layout: ParallelLayout) -> None:
    wide = [name for name in GROUPS if len(layout.groups(name)[0]) > 1]
    show.table(f"Layout {layout}", ["group", "ranks"], [[name, str(layout.groups(name))[1:-1]] for name in wide])


# --- Tables, figure, verdict ------------------------------------------------------------------------------------------


def print_layouts(me: TorchrunRank, records: list[dict]) -> None:
    show.table(
        f"The same training on every layout, ranks: {me.world_size}",
        ["layout", "last loss", "gradient norm", "off", "parameters (KiB)", "peak (KiB)", "sent (KiB)", "ms/step"],
        [
            [
                record["layout"],
                record["results"][-1][0],
                record["results"][-1][1],
                record["gap"],
                record["parameter_bytes"] / 1024,
                record["peak_bytes"] / 1024,
                record["sent_bytes"] / 1024,
                record["milliseconds"],
            ]
            for record in records
        ],
    )


def draw_figure(me: TorchrunRank, records: list[dict]) -> None:
    import matplotlib.pyplot as plt

    show.use_style()
    names = [record["layout"] for record in records]
    figure, axes = plt.subplots(1, 2, figsize=(11, 0.4 * len(records) + 1.6), sharey=True)
    for place, (key, title) in enumerate((("peak_bytes", "held at most (KiB)"), ("sent_bytes", "sent per step (KiB)"))):
        axes[place].barh(names, [record[key] / 1024 for record in records], color=show.rank_colour(place))
        axes[place].set(title=title)
    axes[0].invert_yaxis()
    figure.suptitle(f"The fullest rank, by layout, ranks: {me.world_size}")
    show.save_figure(figure, "results/hybrid.svg")


def find_fault(records: list[dict], found: Search) -> str:
    """What is wrong with the results, in a sentence; empty if nothing is."""
    for record in records:
        if not record["gap"] < TOLERANCE:
            return f"{record['layout']}: loss or norm is off by {record['gap']:.1e}, allowed {TOLERANCE}"
    if not found.plans:
        return "no plan fits: name more GPUs, or a smaller model"
    return ""


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("tp", "pp", "cp", "ep"):
        options.add_argument(
            f"--{name}", type=int, default=1, help=f"ranks in {name}, of the layout you name (default 1)"
        )
    options.add_argument("--dp", type=int, help="ranks in dp (default: what is left)")
    options.add_argument("--zero", type=int, choices=(0, 1), default=0, help="1 shards optimiser states (default 0)")
    options.add_argument("--micro-batches", type=int, default=2, help="of a replica, at most its rows (default 2)")
    options.add_argument("--rows", type=int, default=16, help="sequences in the batch (default 16)")
    options.add_argument("--layers", type=int, default=4, help="blocks of the Transformer (default 4)")
    options.add_argument("--hidden", type=int, default=64, help="its width, a multiple of 8 (default 64)")
    options.add_argument("--sequence", type=int, default=32, help="tokens in a sequence (default 32)")
    options.add_argument("--steps", type=int, default=5, help="training steps, 3 or more (default 5)")
    llamas = [name for name, config in MODELS.items() if isinstance(config, TransformerConfig)]
    options.add_argument("--model", choices=llamas, default="llama-70b", help="to plan for (default llama-70b)")
    options.add_argument("--gpus", type=int, default=64, help="H100s to plan for, in nodes of 8 (default 64)")
    options.add_argument("--batch", type=int, default=512, help="sequences per step of the plan (default 512)")
    chosen = options.parse_args()
    torch.set_num_threads(1)
    with torchrun_ranks() as me:
        taken = chosen.tp * chosen.pp * chosen.cp
        if min(chosen.steps - 2, chosen.rows, chosen.micro_batches, chosen.gpus, chosen.batch, taken) < 1:
            options.error("sizes are 1 or more, steps 3 or more")
        if chosen.hidden % 8:
            options.error("the width must be divisible by 8")
        try:
            named = ParallelLayout(
                chosen.dp or max(1, me.world_size // taken), chosen.tp, chosen.pp, chosen.cp, chosen.ep
            )
        except ValueError as error:
            options.error(str(error))
        if named.ranks != me.world_size:
            options.error(f"the layout {named} is for {named.ranks} ranks, there are {me.world_size}")
        print_groups(named)
        records = compare(me, named, chosen)
        found = search(MODELS[chosen.model], LinkedCluster(GPUS["h100"], chosen.gpus), chosen.batch)
        fault = find_fault(records, found)
        print_layouts(me, records)
        if me.is_main:
            print_plans(found, f"{chosen.model} on {chosen.gpus} H100")
            draw_figure(me, records)
        path = show.write_results("hybrid", {"layouts": records})
        if me.is_main and not fault:
            write_exports(found, Path("results/hybrid_plan.json"))
            best = found.plans[0]
            print(f"Best plan: {best.plan}, {in_gib(best.memory.total)} per GPU, {best.seconds:.1f} s per step.")
        if me.is_main:
            print(fault or f"Every layout trains as one process. Written: {path}, results/hybrid.svg, hybrid_plan.json")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main())
