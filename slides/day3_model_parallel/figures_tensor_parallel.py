"""The pictures of 1_tensor_parallel.md. From the root of the checkout:

    python -m slides.day3_model_parallel.figures_tensor_parallel

Numbers in them are computed here: traffic and masks come from runs of the reference solution on real ranks, times from
published figures by the arithmetic of run_tensor_parallel.py.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from labs.day3_model_parallel.run_tensor_parallel import H100, LLAMA_70B, block_seconds
from shardlab import show
from shardlab.observe import Traffic
from shardlab.ranks import run_ranks
from solutions.day3_model_parallel import tensor_parallel as tp

HERE = Path(__file__).parent / "figures"
INK, FAINT = "#222222", "#999999"
RANKS = 4


def save(figure: plt.Figure, name: str) -> None:
    show.save_figure(figure, HERE / f"tensor_parallel_{name}.svg")
    plt.close(figure)


def canvas(width: float, height: float, across: float, up: float) -> tuple[plt.Figure, Axes]:
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set(xlim=(0, across), ylim=(0, up), aspect="equal")
    axes.axis("off")
    return figure, axes


# --- Matrices ---------------------------------------------------------------------------------------------------------


def matrix(axes: Axes, at: tuple[float, float], size: tuple[float, float], name: str, cut: str = "") -> None:
    """A matrix with its lower left corner at ``at``; cut into columns or rows of one colour per rank."""
    (x, y), (width, height) = at, size
    for rank in range(RANKS if cut else 1):
        corner, shape = (x, y), (width, height)
        if cut == "columns":
            corner, shape = (x + rank * width / RANKS, y), (width / RANKS, height)
        if cut == "rows":
            corner, shape = (x, y + height - (rank + 1) * height / RANKS), (width, height / RANKS)
        colour = show.rank_colour(rank) if cut else "#dddddd"
        axes.add_patch(Rectangle(corner, *shape, facecolor=colour, edgecolor="white", linewidth=1.5))
    axes.text(x + width / 2, y - 0.3, name, ha="center", va="top", fontsize=14, color=INK)


def pair() -> None:
    """x A by columns, times B by rows."""
    figure, axes = canvas(10.5, 3.2, 21, 6.2)
    sign = {"ha": "center", "va": "center", "fontsize": 18, "color": INK}
    matrix(axes, (0.3, 3.2), (2.4, 1.6), "x")
    axes.text(3.2, 4.0, "·", **sign)
    matrix(axes, (3.7, 2.8), (3.6, 2.4), "A, by columns", "columns")
    axes.text(7.8, 4.0, "=", **sign)
    matrix(axes, (8.3, 3.2), (3.6, 1.6), "y", "columns")
    axes.text(12.4, 4.0, "·", **sign)
    matrix(axes, (12.9, 2.2), (2.4, 3.6), "B, by rows", "rows")
    axes.text(16.5, 4.0, "= sum of", **(sign | {"fontsize": 12}))
    for rank in range(RANKS):
        axes.add_patch(
            Rectangle(
                (17.8 + 0.18 * rank, 3.5 - 0.3 * rank), 2.2, 1.5, facecolor=show.rank_colour(rank), edgecolor="white"
            )
        )
    axes.text(19.2, 2.2, "four terms", ha="center", va="top", fontsize=14, color=INK)
    save(figure, "pair")


# --- A block ----------------------------------------------------------------------------------------------------------


def block() -> None:
    """Where a block copies and where it sums; forward to the right, backward to the left."""
    figure, axes = canvas(11, 3.6, 22, 7.2)
    stages = [("norm", 0.4, ""), ("q, k, v", 4.2, "columns"), ("heads", 6.7, "columns"), ("output", 9.2, "rows")]
    stages += [("norm", 12.2, ""), ("gate, up", 15.6, "columns"), ("down", 18.6, "rows")]
    for name, x, cut in stages:
        if cut:
            for rank in range(RANKS):
                y = 4.6 - rank * 0.75
                axes.add_patch(Rectangle((x, y), 1.9, 0.6, facecolor=show.rank_colour(rank), edgecolor="white"))
        else:
            axes.add_patch(Rectangle((x, 2.35), 1.6, 2.85, facecolor="#dddddd", edgecolor="white"))
        axes.text(x + (0.95 if cut else 0.8), 5.5, name, ha="center", fontsize=12, color=INK)
    for x, name in ((2.9, "f"), (11.6, "g"), (14.5, "f"), (21.2, "g")):
        axes.plot([x, x], [1.9, 5.4], color=INK, linewidth=3)
        axes.text(x, 1.4, name, ha="center", va="center", fontsize=16, style="italic", color=INK)
    for y, text, ends in ((6.6, "forward: g sums", (0.5, 21.5)), (0.5, "backward: f sums", (21.5, 0.5))):
        arrow = FancyArrowPatch((ends[0], y), (ends[1], y), arrowstyle="->", mutation_scale=18, color=FAINT)
        axes.add_patch(arrow)
        axes.text(11, y + 0.12, text, ha="center", va="bottom", fontsize=12, color=FAINT)
    save(figure, "block")


# --- GQA --------------------------------------------------------------------------------------------------------------


def kv_heads(heads: int = 8, shared: int = 2) -> None:
    """Which rank holds which query head, and which key and value head."""
    figure, axes = canvas(9, 2.6, 18, 5.2)
    per_rank = heads // RANKS
    for head in range(heads):
        rank = head // per_rank
        axes.add_patch(Rectangle((3 + 1.8 * head, 3), 1.6, 1.2, facecolor=show.rank_colour(rank)))
        axes.text(3.8 + 1.8 * head, 3.6, f"q{head}", ha="center", va="center", color="white", fontsize=12)
    for rank in range(RANKS):
        kv = rank // tp.kv_replicas(heads, shared, RANKS)
        axes.add_patch(Rectangle((3 + 3.6 * rank, 1.2), 3.4, 1.2, facecolor=show.rank_colour(rank), alpha=0.55))
        axes.text(4.7 + 3.6 * rank, 1.8, f"kv head {kv}", ha="center", va="center", color=INK, fontsize=12)
        axes.text(4.7 + 3.6 * rank, 4.5, f"rank {rank}", ha="center", fontsize=12, color=INK)
    for first in range(0, RANKS, RANKS // shared):
        x = 3 + 3.6 * first
        arrow = FancyArrowPatch((x + 1.7, 1.1), (x + 5.3, 1.1), arrowstyle="<->", mutation_scale=14, color=INK)
        arrow.set_connectionstyle("arc3,rad=0.25")
        axes.add_patch(arrow)
    axes.text(2.7, 1.8, "keys, values", ha="right", va="center", fontsize=12)
    axes.text(2.7, 3.6, "queries", ha="right", va="center", fontsize=12)
    axes.text(10, -0.1, "gradients summed over who holds the same head", ha="center", fontsize=12, color=FAINT)
    save(figure, "kv_heads")


# --- The loss ---------------------------------------------------------------------------------------------------------


def loss_bytes(vocab: int, gathered: bool, tokens: int = 16) -> float:
    """Bytes that this rank sends per token."""
    logits = torch.randn(tokens, vocab // dist.get_world_size(), requires_grad=True)
    targets = torch.arange(tokens) % vocab
    with Traffic() as traffic:
        if gathered:
            F.cross_entropy(tp.gather_from_ranks(logits), targets).backward()
        else:
            tp.vocab_parallel_cross_entropy(logits, targets).backward()
    return traffic.sent_bytes() / tokens


def loss() -> None:
    """Bytes per token, by vocabulary, measured on four ranks."""
    vocabs = [2**power for power in range(10, 18)]
    figure, axes = plt.subplots(figsize=(8, 3.6))
    for gathered, name in ((True, "logits gathered"), (False, "vocabulary parallel")):
        sent = [run_ranks(loss_bytes, RANKS, vocab, gathered)[0] for vocab in vocabs]
        axes.plot(vocabs, sent, "o-", label=name)
    axes.set(xscale="log", yscale="log", xlabel="vocabulary", ylabel="bytes sent per token")
    axes.set_xticks([1024, 8192, 65536, 131072], ["1,024", "8,192", "65,536", "131,072"])
    axes.minorticks_off()
    axes.legend()
    save(figure, "loss")


# --- Random numbers ---------------------------------------------------------------------------------------------------


def mask(sharded: bool) -> torch.Tensor:
    """What a dropout with p = 0.5 keeps on this rank."""
    layer = tp.ParallelDropout(0.5, tp.RandomStreams(seed=7), sharded)
    return layer(torch.ones(6, 20)) > 0


def masks() -> None:
    figure, rows = plt.subplots(2, 3, figsize=(9, 2.8), layout="constrained")
    for row, sharded in zip(rows, (False, True), strict=True):
        for rank, (axes, kept) in enumerate(zip(row, run_ranks(mask, 3, sharded), strict=True)):
            axes.imshow(kept, cmap="Greys", interpolation="nearest")
            axes.set_title(f"{'sharded' if sharded else 'replicated'}, rank {rank}", fontsize=11)
            axes.set(xticks=[], yticks=[])
            axes.grid(visible=False)
    save(figure, "masks")


# --- Where it belongs -------------------------------------------------------------------------------------------------


def links() -> None:
    """A block of Llama 3 70B on H100 GPUs: computing and messages, by ranks and link."""
    cases = [
        ("8 ranks, NVLink", 8, H100.nvlink),
        ("8 ranks, InfiniBand", 8, H100.network),
        ("16 ranks, InfiniBand", 16, H100.network),
    ]
    figure, axes = plt.subplots(figsize=(9, 2.8))
    for row, (_, ranks, bandwidth) in enumerate(cases):
        compute, messages = (1e3 * seconds for seconds in block_seconds(LLAMA_70B, 8192, ranks, H100, bandwidth))
        axes.barh(row, compute, color=show.CATEGORY_COLOURS["forward"], label="computing" if row == 0 else None)
        colour = show.CATEGORY_COLOURS["communication"]
        axes.barh(row, messages, left=compute, color=colour, label="messages" if row == 0 else None)
        share = messages / (compute + messages)
        axes.text(compute + messages + 0.3, row, f"{share:.0%} messages", va="center", fontsize=11)
    axes.set_yticks(range(len(cases)), [name for name, *_ in cases])
    axes.invert_yaxis()
    axes.set(xlabel="ms", xlim=(0, 37))
    axes.grid(axis="y", visible=False)
    axes.legend(loc="upper right")
    save(figure, "links")


def main() -> None:
    show.use_style()
    for draw in (pair, block, kv_heads, loss, masks, links):
        draw()


if __name__ == "__main__":
    main()
