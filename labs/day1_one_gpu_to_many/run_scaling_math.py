"""Lesson 1.1 at work: the sheet for a named model on a named cluster, before a single GPU is rented.

It says, by your own functions: what the model needs per GPU under each ZeRO stage, what its activations cost with and
without recomputation and tensor parallelism, days, GPU-hours and money, and what must be sharded, with the reason.
Parameters and FLOPs are checked against the model itself, built on the meta device; a difference: exit code 1.

Tier 1, a laptop CPU (some seconds, no GPU needed whatever the model):

    python labs/day1_one_gpu_to_many/run_scaling_math.py --model llama-70b --gpus 64 --gpu h100
    python labs/day1_one_gpu_to_many/run_scaling_math.py --model llama-405b --gpus 16384 --tokens 15.6e12
    python labs/day1_one_gpu_to_many/run_scaling_math.py --model gpt3-175b --gpus 1024 --gpu a100 --tokens 300e9

Tier 2, one multi-GPU box, and tier 3, a cluster: the same sheet, printed once, by rank 0 of whatever launched it. As
the first line of a job it says what to expect; hold the MFU and the peak memory of the run against it.

    torchrun --standalone --nproc-per-node 8 labs/day1_one_gpu_to_many/run_scaling_math.py --model llama-8b --gpus 8
    srun --nodes 8 --ntasks-per-node 1 torchrun --nnodes 8 --nproc-per-node 8 --rdzv-backend c10d \\
        --rdzv-endpoint $(scontrol show hostnames | head -1):29500 labs/day1_one_gpu_to_many/run_scaling_math.py

Two numbers are yours to replace: 40 % MFU (Llama 3 405B reached 38 to 43 %, arXiv:2407.21783, table 4) and 2 dollars
per GPU-hour (what DeepSeek-V3 reckons with, arXiv:2412.19437, table 1). Writes results/scaling_math.json and .svg.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import asdict, dataclass

from labs.day1_one_gpu_to_many.scaling_math import (
    GPUS,
    MODELS,
    RECIPES,
    RECOMPUTE,
    Cluster,
    MemoryBreakdown,
    ModelConfig,
    activation_bytes,
    budget_bytes,
    choose_parallelism,
    compute_optimal,
    count_parameters,
    hardware_flops,
    in_gib,
    memory_per_gpu,
    minimum_gpus,
    model_flops,
    training_days,
    training_flops,
)
from shardlab import show
from shardlab.models import Transformer, TransformerConfig
from shardlab.observe import flops
from shardlab.ranks import torchrun_ranks

GIB = 2**30
STAGES = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
KINDS = ("parameters", "gradients", "optimizer", "activations")


@dataclass(frozen=True)
class Job:
    """What the sheet is about."""

    model: str
    config: ModelConfig
    cluster: Cluster
    tokens: int
    mfu: float
    price: float  # dollars per GPU-hour


# --- The sums ---------------------------------------------------------------------------------------------------------


def memory_by_stage(job: Job) -> dict[str, MemoryBreakdown]:
    """Per GPU, with full recomputation, without tensor parallelism."""
    recipe, gpus = RECIPES["mixed"], job.cluster.gpus
    return {name: memory_per_gpu(job.config, recipe, gpus, stage) for stage, name in enumerate(STAGES)}


def activations_by_recompute(job: Job) -> list[dict]:
    """GiB that one sequence keeps in all layers, and how many FLOPs more it costs, for each way to recompute."""
    ranks = job.cluster.gpus_per_node
    tensor = max(t for t in (1, 2, 4, 8, 16) if t <= ranks and job.config.heads % t == 0)
    records = []
    for recompute in RECOMPUTE:
        kept = {
            "t = 1": activation_bytes(job.config, 1, recompute),
            f"t = {tensor}": activation_bytes(job.config, 1, recompute, tensor),
            f"t = {tensor}, sequence parallel": activation_bytes(job.config, 1, recompute, tensor, True),
        }
        extra = hardware_flops(job.config, 1, recompute) / model_flops(job.config, 1) - 1
        records.append({"recompute": recompute, "kept": kept, "extra_flops": extra})
    return records


def time_and_money(job: Job) -> list[dict]:
    """Days, GPU-hours and dollars on this cluster, and on 64, 512 and 4,096 of its GPUs."""
    records = []
    for gpus in sorted({64, 512, 4096, job.cluster.gpus}):
        days = training_days(job.config, job.tokens, gpus, job.cluster.gpu, job.mfu)
        hours = 24 * days * gpus
        records.append({"gpus": gpus, "days": days, "gpu_hours": hours, "dollars": hours * job.price})
    return records


def fewest_gpus(job: Job) -> str:
    """`minimum_gpus` in words."""
    try:
        return f"{minimum_gpus(job.config, RECIPES['mixed'], job.cluster.gpu):,} with ZeRO-3 alone"
    except ValueError as no_number_will_do:
        return str(no_number_will_do)


def find_fault(config: ModelConfig) -> str:
    """Where the sums and the model itself differ, in a sentence; empty if they agree.

    The model is built on the meta device, which has shapes and no memory: 405 billion parameters fit a laptop.
    """
    if not isinstance(config, TransformerConfig):
        return ""  # the kit has no GPT; the graded tests hold those against their papers
    import torch

    with torch.device("meta"):
        model = Transformer(config)
        tokens = torch.zeros(1, config.sequence, dtype=torch.int64)
    parameters, computed = sum(parameter.numel() for parameter in model.parameters()), flops(model, tokens)
    if count_parameters(config) != parameters:
        return f"the model has {parameters:,} parameters, count_parameters says {count_parameters(config):,}"
    if model_flops(config, config.sequence) != computed:
        said = model_flops(config, config.sequence)
        return f"one sequence takes the model {computed:,} FLOPs, model_flops says {said:,}"
    return ""


# --- The sheet --------------------------------------------------------------------------------------------------------


def print_sheet(
    job: Job, memory: dict[str, MemoryBreakdown], activations: list[dict], plans: list[dict], budget: int
) -> None:
    config, gpu = job.config, job.cluster.gpu
    params, best = count_parameters(config), compute_optimal(training_flops(config, job.tokens))
    show.table(
        f"{job.model} on {job.cluster.gpus:,} {gpu.name}",
        ["", "", "unit"],
        [
            ["parameters", f"{params:,}", ""],
            ["model states, mixed-precision Adam", in_gib(memory["DDP"].total - memory["DDP"].activations), ""],
            ["tokens", f"{job.tokens:,}", f"{job.tokens / params:.1f} per parameter"],
            ["training, 6 P per token", f"{training_flops(config, job.tokens):.3g}", "FLOPs"],
            ["training, matrix products with attention", f"{model_flops(config, job.tokens):.3g}", "FLOPs"],
            ["Chinchilla would spend that on", f"{best[0]:.3g}", f"parameters and {best[1]:.3g} tokens"],
        ],
    )
    show.table(
        f"GiB per GPU: micro-batch 1, full recomputation; {budget / GIB:.1f} of {gpu.memory_gib:.1f} GiB can be used",
        ["strategy", *KINDS, "total", "fits"],
        [
            [name, *(getattr(need, kind) / GIB for kind in (*KINDS, "total")), "yes" if need.total <= budget else "no"]
            for name, need in memory.items()
        ],
    )
    show.table(
        f"Activations of one sequence of {config.sequence:,} tokens in all layers, GiB",
        ["recompute", *activations[0]["kept"], "FLOPs more"],
        [
            [record["recompute"], *(kept / GIB for kept in record["kept"].values()), f"{record['extra_flops']:.1%}"]
            for record in activations
        ],
    )
    show.table(
        f"Time and money at {job.mfu:.0%} MFU and {job.price:g} dollars per GPU-hour",
        ["GPUs", "days", "GPU-hours", "dollars"],
        [[plan["gpus"], plan["days"], round(plan["gpu_hours"]), round(plan["dollars"])] for plan in plans],
    )


def draw(job: Job, memory: dict[str, MemoryBreakdown], plans: list[dict], budget: int) -> None:
    import matplotlib.pyplot as plt

    show.use_style()
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4))
    bottom = [0.0] * len(memory)
    for kind in KINDS:
        heights = [getattr(need, kind) / GIB for need in memory.values()]
        left.bar(list(memory), heights, bottom=bottom, label=kind)
        bottom = [below + height for below, height in zip(bottom, heights, strict=True)]
    left.axhline(budget / GIB, color="black", linestyle="--", linewidth=1, label=f"usable of {job.cluster.gpu.name}")
    left.set(title=f"{job.model} on {job.cluster.gpus:,} GPUs", ylabel="GiB per GPU")
    left.legend(fontsize=9)
    right.loglog([plan["gpus"] for plan in plans], [plan["days"] for plan in plans], marker="o")
    for plan in plans:
        point = (plan["gpus"], plan["days"])
        right.annotate(f"{plan['days']:,.1f} days", point, xytext=(6, 6), textcoords="offset points")
    right.set(title=f"{job.tokens:.3g} tokens at {job.mfu:.0%} MFU", xlabel="GPUs", ylabel="days")
    right.margins(x=0.2, y=0.2)
    show.save_figure(figure, "results/scaling_math.svg")


def report(job: Job) -> int:
    """Compute, print and write everything; returns the exit code."""
    fault = find_fault(job.config)
    budget = budget_bytes(job.cluster.gpu)
    memory, activations, plans = memory_by_stage(job), activations_by_recompute(job), time_and_money(job)
    choice, fewest = choose_parallelism(job.config, job.cluster), fewest_gpus(job)
    print_sheet(job, memory, activations, plans, budget)
    print(f"Fewest GPUs: {fewest}.\nStrategy: {choice.strategy}. {choice.reason}\n")
    draw(job, memory, plans, budget)
    record = {"job": asdict(job), "memory_bytes": {name: asdict(need) for name, need in memory.items()}}
    record |= {"activation_bytes": activations, "plans": plans, "choice": asdict(choice), "fewest_gpus": fewest}
    path = show.write_results("scaling_math", record)
    agree = "Sums and model agree." if isinstance(job.config, TransformerConfig) else "Not checked: a GPT."
    print(fault or f"{agree} Written: {path}, results/scaling_math.svg")
    return 1 if fault else 0


def whole_number(text: str) -> int:
    """15e12 as well as 15000000000000."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is no number of tokens")
    return int(number)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--model", choices=MODELS, default="llama-70b", help="default llama-70b")
    options.add_argument("--gpu", choices=GPUS, default="h100", help="default h100")
    options.add_argument("--gpus", type=int, default=64, help="of the cluster (default 64)")
    options.add_argument("--gpus-per-node", type=int, default=8, help="with fast links between them (default 8)")
    options.add_argument("--tokens", type=whole_number, help="to train on (default 20 per parameter)")
    options.add_argument("--mfu", type=float, default=0.4, help="model FLOPs utilisation, 0 to 1 (default 0.4)")
    options.add_argument("--price", type=float, default=2.0, help="dollars per GPU-hour (default 2)")
    chosen = options.parse_args()
    if chosen.gpus < 1 or chosen.gpus_per_node < 1 or (chosen.tokens or 1) < 1:
        options.error("need at least 1 GPU, 1 GPU per node and 1 token")
    if not 0 < chosen.mfu <= 1 or chosen.price < 0:
        options.error(f"need 0 < mfu <= 1 and a price of at least 0: got {chosen.mfu} and {chosen.price}")
    with torchrun_ranks() as me:
        if not me.is_main:
            return 0
        config = MODELS[chosen.model]
        cluster = Cluster(GPUS[chosen.gpu], chosen.gpus, chosen.gpus_per_node)
        tokens = chosen.tokens or 20 * count_parameters(config)
        return report(Job(chosen.model, config, cluster, tokens, chosen.mfu, chosen.price))


if __name__ == "__main__":
    sys.exit(main())
