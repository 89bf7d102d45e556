"""The pictures of 3_fsdp.md. From the root of the checkout:

    python -m slides.day2_data_parallel.figures_fsdp

All numbers in them are computed here; the picture of memory trains a stack of layers on two ranks with the reference
solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle
from torch import Tensor, nn

from shardlab import show
from shardlab.observe import PeakMemory
from shardlab.ranks import RankPool, device
from solutions.day2_data_parallel.fsdp import local_rows, rows_per_rank, shard_module

HERE = Path(__file__).parent / "figures"
ROOT = Path(__file__).parents[2]


# --- Memory and traffic, by arithmetic --------------------------------------------------------------------------------


def states() -> None:
    """GiB per rank of 7 billion parameters: 16 bytes each, whole or sharded, and two of 32 layers in bf16."""
    parameters, layers, counts = 7e9, 32, [1, 2, 4, 8, 16, 32, 64]
    sharded = [(16 * parameters / ranks + 2 * 2 * parameters / layers) / 2**30 for ranks in counts]
    figure, axes = plt.subplots(figsize=(9, 3.8))
    axes.plot(counts, [16 * parameters / 2**30] * len(counts), marker="o", label="data parallel")
    axes.plot(counts, sharded, marker="o", label="fully sharded")
    for ranks, gib in zip(counts, sharded, strict=True):
        axes.text(ranks, gib + 5, f"{gib:.1f}" if gib < 10 else f"{gib:.0f}", ha="center", fontsize=10)
    axes.axhline(80, color="grey", linewidth=1)
    axes.text(64, 82, "80 GiB", color="grey", ha="right")
    axes.set(xlabel="ranks", ylabel="GiB per rank", xscale="log", ylim=(0, 135))
    axes.set_xticks(counts, labels=counts)
    axes.minorticks_off()
    axes.legend(loc="center right")
    show.save_figure(figure, HERE / "fsdp_states.svg")


def traffic() -> None:
    """Bytes a rank sends in a step, in units of the model's bytes times (N-1)/N."""
    rows = {
        "data parallel": {"reduce-scatter, gradients": 1, "all-gather, gradients": 1},
        "kept after forward": {"reduce-scatter, gradients": 1, "all-gather, forward": 1},
        "fully sharded": {"reduce-scatter, gradients": 1, "all-gather, forward": 1, "all-gather, backward": 1},
    }
    kinds = list(dict.fromkeys(kind for parts in rows.values() for kind in parts))
    figure, axes = plt.subplots(figsize=(9, 3))
    seen = set()
    for row, parts in enumerate(rows.values()):
        left = 0
        for kind, size in parts.items():
            axes.barh(
                row,
                size,
                left=left,
                height=0.6,
                color=show.rank_colour(kinds.index(kind)),
                edgecolor="white",
                label=None if kind in seen else kind,
            )
            seen.add(kind)
            left += size
    axes.set_yticks(range(len(rows)), labels=list(rows))
    axes.invert_yaxis()
    axes.set(xlabel="sent per step, in (N-1)/N times the bytes of the model", xlim=(0, 3.2))
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, 1.35), ncols=4, fontsize=10)
    axes.grid(axis="y", visible=False)
    show.save_figure(figure, HERE / "fsdp_traffic.svg")


# --- Where rows live, and how a message is sorted ---------------------------------------------------------------------


def rows() -> None:
    """Five rows and ten rows on four ranks: who holds which, and where padding is."""
    figure, axes = plt.subplots(figsize=(9, 2.8))
    for line, count in enumerate((5, 10)):
        room = rows_per_rank(count, 4)
        for rank in range(4):
            held = list(range(count))[local_rows(count, rank, 4)]
            for place in range(room):
                x = rank * 3.4 + place
                if place < len(held):
                    _box(axes, x, line, show.rank_colour(rank), f"{held[place]}")
                else:
                    axes.add_patch(Rectangle((x, line), 0.92, 0.8, facecolor="none", edgecolor="grey", hatch="///"))
    axes.set_xticks([rank * 3.4 + 1 for rank in range(4)], labels=[f"rank {rank}" for rank in range(4)])
    axes.set_yticks([0.4, 1.4], labels=["5 rows", "10 rows"])
    axes.set(xlim=(-0.2, 13.5), ylim=(2, -0.2))
    _bare(axes)
    show.save_figure(figure, HERE / "fsdp_rows.svg")


def message() -> None:
    """Two parameters of 4 and 2 rows on two ranks: as gathered, and as they compute."""
    a, b = [("a", row, row // 2) for row in range(4)], [("b", row, row) for row in range(2)]
    gathered = [*a[:2], b[0], *a[2:], b[1]]
    figure, axes = plt.subplots(figsize=(9, 2.6))
    for line, boxes in enumerate((gathered, [*a, *b])):
        for x, (name, row, rank) in enumerate(boxes):
            _box(axes, 1.05 * x, line, show.rank_colour(rank), f"{name}[{row}]")
    axes.set_yticks([0.4, 1.4], labels=["as gathered:\nby rank", "as it computes:\nby parameter"])
    axes.set_xticks([])
    axes.set(xlim=(-0.2, 6.5), ylim=(2, -0.1))
    _bare(axes)
    show.save_figure(figure, HERE / "fsdp_message.svg")


def _box(axes: Axes, x: float, y: float, colour: str, text: str) -> None:
    axes.add_patch(Rectangle((x, y), 0.92, 0.8, facecolor=colour))
    axes.text(x + 0.46, y + 0.4, text, ha="center", va="center", color="white", fontweight="bold")


def _bare(axes: Axes) -> None:
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


# --- When: a step on a slow network -----------------------------------------------------------------------------------

LAYERS, FORWARD_MS, BACKWARD_MS, NETWORK_MS = 4, 4.0, 8.0, 3.0
COLOURS = {
    **{name: show.CATEGORY_COLOURS[name] for name in ("forward", "backward")},
    "all-gather": show.CATEGORY_COLOURS["communication"],
    "reduce-scatter": show.category_colour("reduce-scatter", ["reduce-scatter"]),
}
Span = tuple[float, float, str, str]


def step(prefetch: int) -> tuple[list[Span], list[Span]]:
    """Spans of processor and network in a step of equal layers; a message takes its turn on one network."""
    processor: list[Span] = []
    network: list[Span] = []
    arrived: dict[tuple[str, int], float] = {}
    clock = 0.0

    def send(label: str, category: str) -> float:
        start = max(clock, network[-1][1] if network else 0.0)
        network.append((start, start + NETWORK_MS, label, category))
        return start + NETWORK_MS

    def gather(phase: str, layer: int) -> None:
        if 0 <= layer < LAYERS and (phase, layer) not in arrived:
            arrived[phase, layer] = send(f"{layer}", "all-gather")

    for phase, order, ahead in (("forward", range(LAYERS), 1), ("backward", reversed(range(LAYERS)), -1)):
        for layer in order:
            gather(phase, layer)
            clock = max(clock, arrived[phase, layer])
            for distance in range(1, prefetch + 1):
                gather(phase, layer + ahead * distance)
            end = clock + (FORWARD_MS if phase == "forward" else BACKWARD_MS)
            processor.append((clock, end, f"{layer}", phase))
            clock = end
            if phase == "backward":
                send(f"{layer}", "reduce-scatter")
    return processor, network


def timeline(prefetch: int, limit: float) -> None:
    processor, network = step(prefetch)
    figure, axes = plt.subplots(figsize=(10, 2.3))
    for line, spans in enumerate((processor, network)):
        for start, end, label, category in spans:
            axes.barh(line, end - start, left=start, height=0.7, color=COLOURS[category], edgecolor="white")
            axes.text((start + end) / 2, line, label, ha="center", va="center", color="white", fontsize=10)
    axes.set_yticks([0, 1], labels=["processor", "network"])
    axes.invert_yaxis()
    axes.set(xlabel="ms", xlim=(0, limit))
    handles = [Patch(color=colour, label=name) for name, colour in COLOURS.items()]
    axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 1.3), ncols=4, fontsize=10)
    axes.grid(axis="y", visible=False)
    show.save_figure(figure, HERE / f"fsdp_prefetch_{prefetch}.svg")


# --- Memory, moment by moment: measured -------------------------------------------------------------------------------

STACK, WIDTH = 12, 128


class Noted(nn.Linear):
    """Calls `note` when it computes, in forward and in backward."""

    def forward(self, x: Tensor) -> Tensor:
        self.note(f"forward {self.index}")
        return NoteBackward.apply(super().forward(x), self)


class NoteBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, layer: Noted) -> Tensor:
        ctx.layer = layer
        return x

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:
        ctx.layer.note(f"backward {ctx.layer.index}")
        return gradient, None


def memory_of_a_step(options: dict) -> list[float]:
    """Layers' worth of bytes beyond the shards, whenever a layer begins to compute, in the second step."""
    stack = nn.Sequential(*(Noted(WIDTH, WIDTH, bias=False) for _ in range(STACK))).to(device())
    held: list[float] = []
    for index, layer in enumerate(stack):
        layer.index, layer.note = index, lambda what: None
        shard_module(layer, **options)
    shard_module(stack, **options)
    x = torch.ones(1, WIDTH, device=device())
    stack(x).sum().backward()
    stack.zero_grad()
    shards = sum(parameter.to_local().nbytes for parameter in stack.parameters())
    with PeakMemory(stack) as memory:
        for layer in stack:
            layer.note = lambda what: held.append((memory.live_bytes - shards) / (4 * WIDTH * WIDTH))
        stack(x).sum().backward()
    return held


def moments() -> None:
    ways: dict[str, dict] = {
        "kept after forward": {"reshard_after_forward": False},
        "prefetch 2": {"prefetch": 2},
        "prefetch 1": {"prefetch": 1},
    }
    figure, axes = plt.subplots(figsize=(10, 4))
    with RankPool(path=[ROOT]) as pool:
        for name, options in ways.items():
            axes.plot(pool.run(memory_of_a_step, 2, options)[0], marker="o", label=name)
    names = [f"forward {index}" for index in range(STACK)] + [f"backward {index}" for index in reversed(range(STACK))]
    axes.set_xticks(range(0, 2 * STACK, 2), labels=names[::2], rotation=45, ha="right")
    axes.set(ylabel="layers beyond the shards", ylim=(0, None))
    axes.legend()
    show.save_figure(figure, HERE / "fsdp_moments.svg")


# --- Reduction in bfloat16 --------------------------------------------------------------------------------------------


def added_up(gradients: Sequence[float], dtype: torch.dtype) -> float:
    total = torch.zeros((), dtype=dtype)
    for gradient in gradients:
        total += torch.tensor(gradient, dtype=dtype)
    return total.item()


def reduction() -> None:
    """The sum of equal gradients over more and more ranks, in float32 and in bfloat16."""
    counts = [2**power for power in range(11)]
    figure, axes = plt.subplots(figsize=(8, 3.6))
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        sums = [added_up([1.0] * ranks, dtype) / ranks for ranks in counts]
        axes.plot(counts, sums, marker="o", label=f"summed in {name}")
    axes.set(xscale="log", xlabel="ranks", ylabel="average of ones", ylim=(0, 1.1))
    axes.set_xticks(counts, labels=counts)
    axes.minorticks_off()
    axes.legend(loc="lower left")
    show.save_figure(figure, HERE / "fsdp_reduction.svg")


def main() -> None:
    torch.set_num_threads(1)
    show.use_style()
    states()
    traffic()
    rows()
    message()
    limit = max(step(0)[1][-1][1], step(0)[0][-1][1]) + 1
    for prefetch in (0, 1):
        timeline(prefetch, limit)
    reduction()
    moments()
    for prefetch in (0, 1):
        processor, network = step(prefetch)
        print(f"prefetch {prefetch}: processor ends {processor[-1][1]} ms, network {network[-1][1]} ms")


if __name__ == "__main__":
    main()
