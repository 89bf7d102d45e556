"""The pictures of 4_data_parallel_workshop.md. From the root of the checkout:

    python -m slides.day2_data_parallel.figures_data_parallel_workshop

All numbers in them are computed here, with the reference solution.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

from shardlab import show
from solutions.day2_data_parallel.data_parallel_workshop import (
    STRATEGIES,
    Gpu,
    ModelBytes,
    expected_memory,
    expected_speedup,
    expected_traffic,
    recommend,
)

HERE = Path(__file__).parent / "figures"
GIB, GB = 2**30, 1e9
PARAMETERS = 7 * 10**9
MODEL = ModelBytes(2 * PARAMETERS, 2 * PARAMETERS, 12 * PARAMETERS, activations=5 * GIB, layer=4 * 10**8)
RANKS = [2**power for power in range(10)]
COLOURS = {"single GPU": show.rank_colour(7)} | {s: show.rank_colour(place) for place, s in enumerate(STRATEGIES[1:])}


def save(figure: plt.Figure, name: str) -> None:
    show.save_figure(figure, HERE / f"data_parallel_workshop_{name}.svg")
    plt.close(figure)


def ranks_axis(axes: Axes) -> None:
    axes.set(xlabel="ranks", xscale="log")
    axes.set_xticks(RANKS, labels=RANKS)
    axes.minorticks_off()


def draw_memory() -> None:
    figure, axes = plt.subplots(figsize=(9, 4.2))
    for strategy in STRATEGIES[1:]:
        held = [expected_memory(strategy, MODEL, ranks) / GIB for ranks in RANKS]
        axes.plot(RANKS, held, color=COLOURS[strategy], label=strategy)
    axes.axhline(80, color="grey", linewidth=1, linestyle="--")
    axes.annotate("80 GiB", (RANKS[-1], 82), color="grey", ha="right")
    axes.set(ylabel="GiB held by a rank", ylim=(0, None))
    ranks_axis(axes)
    axes.legend()
    save(figure, "memory")


def draw_traffic() -> None:
    figure, axes = plt.subplots(figsize=(9, 3.6))
    places = np.arange(4)
    parts = {"DDP": (2, 0), "ZeRO-1": (1, 1), "ZeRO-2": (1, 1), "ZeRO-3": (1, 2)}
    left = np.zeros(4)
    for index, (what, colour) in enumerate((("gradients", "#EE6677"), ("parameters", "#4477AA"))):
        sent = np.array([parts[strategy][index] * MODEL.parameters * 7 / 8 / GIB for strategy in parts])
        axes.barh(places, sent, left=left, color=colour, label=what)
        left += sent
    for place, strategy in enumerate(parts):
        total = expected_traffic(strategy, MODEL, 8) / GIB
        axes.annotate(f"{total:.1f} GiB", (total + 0.4, place), va="center")
    axes.set(xlabel="GiB that one of 8 ranks sends in a step", xlim=(0, 42))
    axes.set_yticks(places, labels=list(parts))
    axes.invert_yaxis()
    axes.legend(loc="lower right")
    save(figure, "traffic")


def draw_free() -> None:
    """Two steps with equally many messages, and what free messages leave of them."""
    compute, message, layers = 6.0, 4.0, 4
    timeline = show.Timeline("What a perfect network would save", unit="ms")
    for name, hidden in (("hidden", True), ("exposed", False)):
        free = 0.0
        for layer in range(layers):
            done = (layer + 1) * compute
            timeline.add(f"{name}: processor", done - compute, done, f"layer {layers - 1 - layer}", "backward")
            start = max(free, done) if hidden else max(free, layers * compute)
            free = start + message
            timeline.add(f"{name}: network", start, free, str(layers - 1 - layer), "communication")
    timeline.save(HERE / "data_parallel_workshop_free.svg")


def draw_speedup() -> None:
    figure, axes = plt.subplots(figsize=(9, 4.2))
    gpu = Gpu("GPU", 80 * GIB, 0.5)
    for place, gb in enumerate((400, 50, 25, 5)):
        speed = [expected_speedup("DDP", MODEL, gpu, ranks, gb * GB) / ranks for ranks in RANKS]
        axes.plot(RANKS, speed, color=show.rank_colour(place), marker="o", label=f"{gb} GB/s")
    axes.set(ylabel="efficiency at best", ylim=(0, 1.05))
    ranks_axis(axes)
    axes.legend(title="link")
    save(figure, "speedup")


def draw_map() -> None:
    answers = [*STRATEGIES, "does not fit"]
    memories, links = np.geomspace(12, 200, 160), np.geomspace(0.5, 400, 160)
    area = [
        [answers.index(recommend(MODEL, Gpu("GPU", int(gib * GIB), 0.5), 8, gb * GB).strategy) for gib in memories]
        for gb in links
    ]
    colours = [*COLOURS.values(), "#DDDDDD"]
    figure, axes = plt.subplots(figsize=(9, 4.4))
    axes.pcolormesh(
        memories, links, area, cmap=ListedColormap(colours), vmin=-0.5, vmax=len(answers) - 0.5, rasterized=True
    )
    axes.set(xscale="log", yscale="log", xlabel="memory of a GPU (GiB)", ylabel="link (GB/s)")
    axes.set_xticks([16, 24, 40, 80, 141], labels=[16, 24, 40, 80, 141])
    axes.minorticks_off()
    axes.grid(False)
    patches = [Patch(color=colour, label=answer) for colour, answer in zip(colours, answers, strict=True)]
    axes.legend(handles=patches, loc="center left", bbox_to_anchor=(1, 0.5))
    save(figure, "map")


def main() -> None:
    show.use_style()
    for draw in (draw_memory, draw_traffic, draw_free, draw_speedup, draw_map):
        draw()


if __name__ == "__main__":
    main()
