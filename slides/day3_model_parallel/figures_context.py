"""The pictures of 3_context.md. From the root of the checkout:

    python -m slides.day3_model_parallel.figures_context

Numbers in them are computed here: traffic and memory come from runs of the reference solution on real ranks.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.patches import FancyArrowPatch, Rectangle

from shardlab import show
from shardlab.observe import PeakMemory, Traffic
from shardlab.ranks import run_ranks
from solutions.day3_model_parallel import context as cp

HERE = Path(__file__).parent / "figures"
INK, FAINT = "#222222", "#999999"
RANKS = 4


def save(figure: plt.Figure, name: str) -> None:
    show.save_figure(figure, HERE / f"context_{name}.svg")
    plt.close(figure)


def canvas(width: float, height: float, across: float, up: float) -> tuple[plt.Figure, Axes]:
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set(xlim=(0, across), ylim=(0, up), aspect="equal")
    axes.axis("off")
    return figure, axes


# --- Sequence parallelism ---------------------------------------------------------------------------------------------


def regions() -> None:
    """Where a block is cut by tokens (rows) and where by features (columns), without and with sequence parallelism."""
    figure, axes = canvas(11, 4, 22, 8)
    stages = [("norm", 3.2), ("attention", 6.6), ("dropout, +", 10.0), ("norm", 13.4), ("feed-forward", 16.8)]
    for top, name, cut in ((4.6, "tensor\nparallel", False), (0.4, "and\nsequence\nparallel", True)):
        axes.text(0.2, top + 1.2, name, va="center", fontsize=12, color=INK)
        for number, (stage, x) in enumerate(stages):
            if number in (1, 4):
                cells = [(x + 0.5 * rank, top, 0.5, 2.4) for rank in range(RANKS)]
            elif cut:
                cells = [(x, top + 1.8 - 0.6 * rank, 2.0, 0.6) for rank in range(RANKS)]
            else:
                cells = [(x, top, 2.0, 2.4)]
            for rank, (left, bottom, width, height) in enumerate(cells):
                colour = show.rank_colour(rank) if len(cells) > 1 else "#dddddd"
                axes.add_patch(Rectangle((left, bottom), width, height, facecolor=colour, edgecolor="white"))
            axes.text(x + 1, top + 2.75, stage, ha="center", fontsize=11, color=INK)
            if number < 4:
                entering = number in (0, 3)
                names = ("all-gather", "reduce-\nscatter") if cut else ("", "all-reduce")
                word = "" if number == 2 else names[0 if entering else 1]
                axes.text(x + 2.7, top - 0.35, word, ha="center", va="center", fontsize=11, color="#666666")
                arrow = FancyArrowPatch((x + 2.1, top + 1.2), (x + 3.3, top + 1.2), arrowstyle="->", mutation_scale=14)
                axes.add_patch(arrow)
        axes.text(
            20.4, top + 1.2, "all-reduce" if not cut else "reduce-\nscatter", va="center", fontsize=11, color="#666666"
        )
        axes.add_patch(FancyArrowPatch((18.9, top + 1.2), (20.2, top + 1.2), arrowstyle="->", mutation_scale=14))
    save(figure, "regions")


# --- The ring ---------------------------------------------------------------------------------------------------------


def ring() -> None:
    """Whose keys are where in each step of forward, and which triangle or rectangle they are used for."""
    figure, axes = canvas(10, 3.9, 20, 7.8)
    for rank in range(RANKS):
        axes.text(1.6, 5.4 - 1.4 * rank, f"rank {rank}", ha="right", va="center", fontsize=12, color=INK)
    for step in range(RANKS):
        left = 2.2 + 4.5 * step
        axes.text(left + 1.3, 6.7, f"step {step}", ha="center", fontsize=12, color=INK)
        for rank in range(RANKS):
            source = (rank - step) % RANKS
            y = 4.9 - 1.4 * rank
            axes.add_patch(Rectangle((left, y), 2.6, 1.0, facecolor=show.rank_colour(source)))
            axes.text(left + 1.3, y + 0.5, f"K, V of {source}", ha="center", va="center", fontsize=11, color="white")
            if step < RANKS - 1:
                down = -1.4 if rank < RANKS - 1 else 1.4 * (RANKS - 1)
                arrow = FancyArrowPatch(
                    (left + 2.65, y + 0.5),
                    (left + 4.45, y + 0.5 + down),
                    arrowstyle="->",
                    mutation_scale=11,
                    color=FAINT,
                )
                axes.add_patch(arrow)
    save(figure, "ring")


# --- The zig-zag ------------------------------------------------------------------------------------------------------


def zigzag(sequence: int = 64) -> None:
    """The causal mask, each rank's rows in its colour; and how many pairs a rank computes."""
    mask = torch.ones(sequence, sequence).tril()
    layouts = {
        "equal parts": [torch.arange(sequence).chunk(RANKS)[rank] for rank in range(RANKS)],
        "zig-zag": [cp.zigzag_positions(sequence, rank, RANKS) for rank in range(RANKS)],
    }
    figure, axes = plt.subplots(1, 3, figsize=(11, 3.5), layout="constrained")
    for number, (name, parts) in enumerate(layouts.items()):
        image = torch.ones(sequence, sequence, 3)
        for rank, rows in enumerate(parts):
            colour = torch.tensor(to_rgb(show.rank_colour(rank)))
            seen = mask[rows].unsqueeze(-1)
            image[rows] = seen * colour + (1 - seen) * (0.85 + 0.15 * colour)
        axes[number].imshow(image)
        axes[number].set(title=name, xlabel="key", ylabel="query")
        axes[number].grid(visible=False)
        counts = [mask[rows].sum().item() for rows in parts]
        places = [rank + 0.4 * number - 0.2 for rank in range(RANKS)]
        colours = [show.rank_colour(rank) for rank in range(RANKS)]
        axes[2].bar(places, counts, width=0.36, color=colours, hatch="" if number else "//", edgecolor="white")
    axes[2].set(title="Pairs: hatched equal parts, plain zig-zag", xlabel="rank", xticks=range(RANKS))
    axes[2].title.set_fontsize(11)
    save(figure, "zigzag")


# --- Traffic and memory -----------------------------------------------------------------------------------------------


def sent(shapes: list[tuple[int, int]], tokens: int) -> list[list[float]]:
    """What this rank sends in forward by ring and by Ulysses, in units of its query, for each (heads, kv heads)."""
    found = []
    for heads, kv_heads in shapes:
        query, key, value = (torch.zeros(1, each, tokens, 4) for each in (heads, kv_heads, kv_heads))
        found.append([])
        for attend in (cp.ring_attention, cp.ulysses_attention):
            with Traffic() as traffic:
                attend(query, key, value)
            found[-1].append(traffic.sent_bytes() / query.nbytes)
    return found


def traffic() -> None:
    shapes, sizes = [(16, 16), (16, 2)], (1, 2, 4, 8, 16)
    found = [run_ranks(sent, ranks, shapes, 2, timeout=120)[0] for ranks in sizes]
    figure, both = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
    for number, (axes, (heads, kv_heads)) in enumerate(zip(both, shapes, strict=True)):
        for way, name in enumerate(("ring", "Ulysses")):
            axes.plot(sizes, [each[number][way] for each in found], "o-", label=name)
        axes.set(
            title=f"{heads} heads, {kv_heads} key heads", xlabel="ranks", ylabel="sent, in units of Q", xticks=sizes
        )
        axes.legend()
    save(figure, "traffic")


def peak(tokens: int) -> int:
    """Most bytes in forward and backward of a ring with this many tokens in all."""
    own = [cp.zigzag_split(torch.zeros(1, 2, tokens, 16), 2).requires_grad_() for _ in range(3)]
    with PeakMemory() as memory:
        cp.ring_attention(*own).sum().backward()
    return memory.peak_bytes


def memory() -> None:
    lengths = (512, 1024, 2048, 4096)
    figure, axes = plt.subplots(figsize=(8, 3.4))
    for ranks in (1, 2, 4):
        peaks = [max(run_ranks(peak, ranks, length, timeout=120)) / 2**20 for length in lengths]
        axes.plot(lengths, peaks, "o-", label=f"{ranks} rank{'s' * (ranks > 1)}")
    axes.plot(lengths, [2 * n**2 * 4 / 2**20 for n in lengths], "--", color="grey", label="all scores")
    axes.set(xlabel="tokens in the sequence", ylabel="peak MiB of a rank", ylim=(0, 21))
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1))
    save(figure, "memory")


def main() -> None:
    show.use_style()
    for draw in (regions, ring, zigzag, traffic, memory):
        draw()


if __name__ == "__main__":
    main()
