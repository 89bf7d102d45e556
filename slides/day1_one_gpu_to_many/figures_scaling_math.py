"""The pictures of 1_scaling_math.md. From the root of the checkout:

    python -m slides.day1_one_gpu_to_many.figures_scaling_math

All numbers in them are computed here, with the reference solution, or are those of the papers named beside them.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from shardlab import show
from solutions.day1_one_gpu_to_many.scaling_math import (
    GPUS,
    MODELS,
    RECIPES,
    RECOMPUTE,
    Cluster,
    activation_bytes,
    budget_bytes,
    choose_parallelism,
    compute_optimal,
    count_parameters,
    memory_per_gpu,
    model_flops,
    training_days,
    training_flops,
)

HERE = Path(__file__).parent / "figures"
GIB = 2**30
KINDS = ("parameters", "gradients", "optimizer", "activations")


def save(figure: plt.Figure, name: str) -> None:
    show.save_figure(figure, HERE / f"scaling_math_{name}.svg")
    plt.close(figure)


# --- Memory -----------------------------------------------------------------------------------------------------------


def memory() -> None:
    """Llama 3 70B on 64 H100: what each GPU needs, stage by stage."""
    strategies = ("DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
    needs = [memory_per_gpu(MODELS["llama-70b"], RECIPES["mixed"], 64, stage) for stage in range(4)]
    figure, axes = plt.subplots(figsize=(10, 3.8))
    left = [0.0] * len(needs)
    for kind in KINDS:
        widths = [getattr(need, kind) / GIB for need in needs]
        axes.barh(strategies, widths, left=left, label=kind)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    usable = budget_bytes(GPUS["h100"]) / GIB
    for row, total in enumerate(left):
        axes.text(max(total, usable) + 12, row, f"{total:,.0f} GiB", va="center")
    axes.axvline(usable, color="black", linestyle="--", linewidth=1.2)
    axes.text(usable + 12, 3.42, f"{usable:.0f} GiB of an H100 can be used", va="center")
    axes.invert_yaxis()
    axes.set(xlabel="GiB per GPU", ylim=(3.65, -0.5))
    axes.grid(axis="y", visible=False)
    axes.legend(loc="lower right")
    save(figure, "memory")


def kept() -> None:
    """What a layer of Llama 3 8B keeps for backward, tensor by tensor, in KiB per token."""
    config = MODELS["llama-8b"]
    hidden, kv_width, inner = config.hidden, config.kv_heads * config.head_dim, config.ffn
    tensors = {
        "input of the attention norm": (hidden, 0),
        "input of attention": (hidden, 0),
        "query": (hidden, 1),
        "key": (kv_width, 1),
        "value": (kv_width, 1),
        "input of the output projection": (hidden, 1),
        "input of the feed-forward norm": (hidden, 0),
        "input of the feed-forward": (hidden, 0),
        "gate": (inner, 1),
        "up": (inner, 1),
        "silu(gate)": (inner, 1),
        "silu(gate) · up": (inner, 1),
    }
    figure, axes = plt.subplots(figsize=(10, 4.2))
    for row, (width, colour) in enumerate(tensors.values()):
        axes.barh(row, 2 * width / 1024, color=show.rank_colour(colour))
        axes.text(2 * width / 1024 + 0.3, row, f"{2 * width / 1024:g}", va="center", fontsize=10)
    axes.set_yticks(range(len(tensors)), labels=list(tensors))
    axes.invert_yaxis()
    for colour, label in enumerate(("whole on every tensor-parallel rank", "split between them")):
        axes.barh(0, 0, color=show.rank_colour(colour), label=label)
    total = sum(2 * width for width, _ in tensors.values())
    axes.set(xlabel="KiB per token", title=f"{total / 1024:.0f} KiB per token and layer, scores not kept")
    axes.grid(axis="y", visible=False)
    axes.legend(loc="upper right")
    save(figure, "kept")


def activations() -> None:
    """GPT-3 175B, one sequence of 2,048 tokens, all layers: three ways to recompute, three to parallelise."""
    config = MODELS["gpt3-175b"]
    ways = {"one GPU": (1, False), "tensor parallel, t = 8": (8, False), "and sequence parallel": (8, True)}
    figure, axes = plt.subplots(figsize=(10, 4))
    for group, recompute in enumerate(RECOMPUTE):
        for bar, (label, way) in enumerate(ways.items()):
            height = activation_bytes(config, 1, recompute, *way) / GIB
            place = group + (bar - 1) * 0.27
            axes.bar(place, height, width=0.25, color=show.rank_colour(bar), label=label if group == 0 else None)
            axes.text(place, height + 3, f"{height:,.1f}", ha="center", fontsize=10)
    axes.set_xticks(range(len(RECOMPUTE)), labels=[f"recompute: {name}" for name in RECOMPUTE])
    axes.set(ylabel="GiB", ylim=(0, 290))
    axes.grid(axis="x", visible=False)
    axes.legend()
    save(figure, "activations")


# --- Compute ----------------------------------------------------------------------------------------------------------


def attention() -> None:
    """FLOPs with attention, as a multiple of 6 P per token, by sequence length."""
    lengths = [2**power for power in range(10, 18)]
    figure, axes = plt.subplots(figsize=(10, 3.8))
    for name in ("llama-8b", "llama-70b", "llama-405b"):
        config = MODELS[name]
        ratios = [model_flops(replace(config, sequence=length), 1) / training_flops(config, 1) for length in lengths]
        axes.plot(lengths, ratios, marker="o", label=name)
    axes.axhline(1, color="grey", linewidth=1)
    axes.set(xscale="log", xlabel="sequence, tokens", ylabel="FLOPs / 6 P per token", ylim=(0, None))
    axes.set_xticks(lengths, labels=[f"{length // 1024}K" for length in lengths])
    axes.minorticks_off()
    axes.legend()
    save(figure, "attention")


def chinchilla() -> None:
    """The compute-optimal line, table 3 of arXiv:2203.15556, and what some models did."""
    table = [(1.92e19, 400e6), (1.21e20, 1e9), (1.23e22, 10e9), (5.76e23, 67e9), (3.85e24, 175e9), (9.90e24, 280e9)]
    table += [(3.43e25, 520e9), (1.27e26, 1e12)]
    trained = {"gpt3-175b": 300e9, "llama-8b": 15e12, "llama-70b": 15e12, "llama-405b": 15.6e12}
    budgets = [10.0**power for power in range(19, 28)]
    figure, axes = plt.subplots(figsize=(10, 4))
    axes.plot(budgets, [compute_optimal(budget)[0] for budget in budgets], label="20 tokens per parameter")
    axes.plot(*zip(*table, strict=True), "o", color=show.rank_colour(0), label="Hoffmann et al. 2022, table 3")
    for index, (name, tokens) in enumerate(trained.items(), start=1):
        point = training_flops(MODELS[name], tokens), count_parameters(MODELS[name])
        axes.plot(*point, "s", color=show.rank_colour(index))
        left = name == "gpt3-175b"
        place = {"xytext": (-8, 4), "ha": "right"} if left else {"xytext": (8, -4), "ha": "left"}
        axes.annotate(f"{name}, {tokens / point[1]:,.0f} tokens/parameter", point, textcoords="offset points", **place)
    axes.set(xscale="log", yscale="log", xlabel="training FLOPs", ylabel="parameters", xlim=(1e19, 3e28))
    axes.legend(loc="upper left")
    save(figure, "chinchilla")


def days() -> None:
    """Days by number of H100s, at 40 % MFU."""
    jobs = {"llama-8b": 15e12, "llama-70b": 15e12, "llama-405b": 15.6e12}
    counts = [2**power for power in range(6, 15)]
    figure, axes = plt.subplots(figsize=(10, 4))
    for name, tokens in jobs.items():
        times = [training_days(MODELS[name], tokens, count, GPUS["h100"], 0.4) for count in counts]
        axes.plot(counts, times, marker="o", label=f"{name}, {tokens / 1e12:g}e12 tokens")
    for limit, label in ((7, "a week"), (90, "a quarter")):
        axes.axhline(limit, color="grey", linewidth=1)
        axes.text(counts[0], limit * 1.15, label, color="grey")
    axes.set(xscale="log", yscale="log", xlabel="H100s, all at 40 % MFU", ylabel="days")
    axes.set_xticks(counts, labels=[f"{count:,}" for count in counts])
    axes.minorticks_off()
    axes.legend()
    save(figure, "days")


# --- The choice -------------------------------------------------------------------------------------------------------


def choices() -> None:
    """The strategy that `choose_parallelism` picks, for models by numbers of H100s."""
    names, counts = ("llama-1b", "llama-8b", "llama-70b", "llama-405b"), (1, 8, 64, 512, 4096, 16384)
    figure, axes = plt.subplots(figsize=(11, 3.6))
    for row, name in enumerate(names):
        for column, gpus in enumerate(counts):
            _cell(axes, row, column, choose_parallelism(MODELS[name], Cluster(GPUS["h100"], gpus)).strategy)
    axes.set_xticks(range(len(counts)), labels=[f"{count:,}" for count in counts])
    axes.set_yticks(range(len(names)), labels=names)
    axes.set(xlim=(-0.5, len(counts) - 0.5), ylim=(len(names) - 0.5, -0.5), xlabel="H100s, 8 in a node")
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    save(figure, "choices")


def _cell(axes: Axes, row: int, column: int, strategy: str) -> None:
    order = ("single GPU", "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
    fits = strategy != "does not fit"
    colour = show.rank_colour(order.index(strategy.partition(" +")[0])) if fits else "#DDDDDD"
    axes.add_patch(plt.Rectangle((column - 0.47, row - 0.45), 0.94, 0.9, facecolor=colour, alpha=0.85 if fits else 1))
    ink = "white" if fits and not strategy.startswith(("ZeRO-2", "ZeRO-3")) else "black"  # their colours are light
    axes.text(column, row, strategy, ha="center", va="center", color=ink, fontsize=10, fontweight="bold")


def main() -> None:
    show.use_style()
    memory()
    kept()
    activations()
    attention()
    chinchilla()
    days()
    choices()


if __name__ == "__main__":
    main()
