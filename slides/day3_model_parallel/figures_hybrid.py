"""The pictures of 5_hybrid.md. From the root of the checkout:

    python -m slides.day3_model_parallel.figures_hybrid

All numbers in them are computed here, with the reference solution among those of the other lessons.
"""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib.pyplot as plt

from shardlab import show
from shardlab.grade.workspace import workspace
from shardlab.syllabus import ROOT

HERE = Path(__file__).parent / "figures"


def mesh(hybrid) -> None:
    """tp 2, dp 2, pp 2: ranks in a grid, coloured by the parameters they hold."""
    layout = hybrid.ParallelLayout(tp=2, dp=2, pp=2)
    figure, axes = plt.subplots(figsize=(8, 4))
    for rank in range(layout.ranks):
        at = layout.coordinates(rank)
        x, y = at["tp"] + 2.3 * at["dp"], -1.15 * at["pp"]
        axes.add_patch(plt.Rectangle((x, y), 0.95, 1, color=show.rank_colour(at["tp"] + 2 * at["pp"]), alpha=0.6))
        axes.text(x + 0.475, y + 0.5, f"rank {rank}", ha="center", va="center", fontsize=14)
    axes.set(xlim=(-0.1, 4.4), ylim=(-1.3, 1.1))
    axes.set_xticks([0.475, 1.475, 2.775, 3.775], ["replica 0\ntp 0", "tp 1", "replica 1\ntp 0", "tp 1"])
    axes.set_yticks([0.5, -0.65], ["stage 0", "stage 1"])
    axes.grid(visible=False)
    show.save_figure(figure, HERE / "hybrid_mesh.svg")
    plt.close(figure)


def orders(hybrid, gpus) -> None:
    """What a step's messages cost in each order of three dimensions, on two nodes of 8."""
    layout = hybrid.ParallelLayout(tp=4, dp=2, pp=2)
    cluster = hybrid.LinkedCluster(gpus["h100"], 16, 8)
    traffic = {"tp": 80e9, "data": 3e9, "pp": 0.5e9}
    seen = {}
    for order in hybrid.ORDERS:
        placed = hybrid.place_on_topology(layout, cluster, traffic, [order])
        seen.setdefault(tuple(name for name in order if name != "cp"), placed)
    figure, axes = plt.subplots(figsize=(9, 3.6))
    names = [", ".join(order) for order in seen]
    left = [0.0] * len(names)
    for number, name in enumerate(traffic):
        seconds = [placed.seconds[name] for placed in seen.values()]
        axes.barh(names, seconds, left=left, color=show.rank_colour(number), label=name)
        left = [a + b for a, b in zip(left, seconds, strict=True)]
    axes.set(xlabel="seconds per step, if nothing hides", title="Order of dimensions, innermost first")
    axes.invert_yaxis()
    axes.legend()
    show.save_figure(figure, HERE / "hybrid_orders.svg")
    plt.close(figure)


def plans(hybrid, models, gpus) -> None:
    """All plans for Llama 3 70B on 64 H100 that fit: memory and time."""
    found = hybrid.search(models["llama-70b"], hybrid.LinkedCluster(gpus["h100"], 64), 512)
    figure, axes = plt.subplots(figsize=(9, 3.8))
    for number, tp in enumerate((1, 2, 4, 8)):
        own = [each for each in found.plans if each.plan.layout.tp == tp]
        places = [each.memory.total / 2**30 for each in own], [each.seconds for each in own]
        axes.plot(*places, "o", color=show.rank_colour(number), alpha=0.6, label=f"tp {tp}")
    axes.set(xlabel="GiB per GPU", ylabel="seconds per step", yscale="log")
    axes.set_title(f"{len(found.plans)} plans fit, {len(found.rejected)} rejected")
    axes.legend()
    show.save_figure(figure, HERE / "hybrid_plans.svg")
    plt.close(figure)


def stages(hybrid, models) -> None:
    """Memory of the stages of a pipeline of 4: Llama 3 70B, tp 8, dp 2, ZeRO-1."""
    plan = hybrid.Plan(models["llama-70b"], hybrid.ParallelLayout(tp=8, pp=4, dp=2), 512, zero=1)
    figure, axes = plt.subplots(figsize=(9, 3.4))
    left = [0.0] * 4
    names = [f"stage {stage}" for stage in range(4)]
    for number, kind in enumerate(("parameters", "gradients", "optimizer", "activations")):
        sizes = [getattr(hybrid.stage_memory(plan, stage), kind) / 2**30 for stage in range(4)]
        axes.barh(names, sizes, left=left, color=show.rank_colour(number), label=kind)
        left = [a + b for a, b in zip(left, sizes, strict=True)]
    axes.set(xlabel="GiB per GPU", title=str(plan))
    axes.invert_yaxis()
    axes.legend()
    show.save_figure(figure, HERE / "hybrid_stages.svg")
    plt.close(figure)


def main() -> None:
    show.use_style()
    with workspace(ROOT, ROOT / "solutions") as place:
        sys.path.insert(0, str(place))
        from labs.day1_one_gpu_to_many.scaling_math import GPUS, MODELS
        from labs.day3_model_parallel import hybrid

        mesh(hybrid)
        orders(hybrid, GPUS)
        plans(hybrid, MODELS, GPUS)
        stages(hybrid, MODELS)


if __name__ == "__main__":
    main()
