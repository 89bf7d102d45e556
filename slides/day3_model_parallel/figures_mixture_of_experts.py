"""The pictures of 4_mixture_of_experts.md. From the root of the checkout:

    python -m slides.day3_model_parallel.figures_mixture_of_experts

Numbers in them are computed here, by runs of the reference solution on real ranks and real text.
"""

from __future__ import annotations

import statistics
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.patches import Circle, FancyArrowPatch, Rectangle

from shardlab import show
from shardlab.grade.workspace import workspace
from shardlab.models import TransformerConfig
from shardlab.ranks import RankPool
from shardlab.syllabus import ROOT
from solutions.day3_model_parallel.mixture_of_experts import expert_layout

HERE = Path(__file__).parent / "figures"
INK, FAINT = "#222222", "#999999"
RANKS, EXPERTS, STEPS = 4, 8, 100
SHAPE = TransformerConfig(vocab=1024, hidden=64, layers=1, heads=4, kv_heads=2, ffn=128, sequence=64)
FACTORS = (0.5, 1.0, 1.5, 2.0)


def save(figure: plt.Figure, name: str) -> None:
    show.save_figure(figure, HERE / f"mixture_of_experts_{name}.svg")
    plt.close(figure)


def canvas(width: float, height: float, across: float, up: float) -> tuple[plt.Figure, Axes]:
    figure, axes = plt.subplots(figsize=(width, height))
    axes.set(xlim=(0, across), ylim=(0, up), aspect="equal")
    axes.axis("off")
    return figure, axes


def box(axes: Axes, at: tuple[float, float], size: tuple[float, float], words: str, colour: str = "#EEEEEE") -> None:
    axes.add_patch(Rectangle(at, *size, facecolor=colour, edgecolor="white", linewidth=1.5))
    ink = INK if show.palette.is_light(colour) else "white"
    centre = (at[0] + size[0] / 2, at[1] + size[1] / 2)
    axes.text(*centre, words, ha="center", va="center", fontsize=12, color=ink)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], **look) -> None:
    axes.add_patch(FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=12, **({"color": INK} | look)))


# --- Drawings ---------------------------------------------------------------------------------------------------------


def layer() -> None:
    """A token, the router, eight experts of which it meets two, and the sum."""
    figure, axes = canvas(10.5, 3.6, 21, 7.2)
    box(axes, (0.3, 3.1), (2.2, 1.0), "token")
    box(axes, (3.7, 3.1), (2.6, 1.0), "router", "#CCBB44")
    box(axes, (17.6, 3.1), (3.0, 1.0), "gated sum")
    arrow(axes, (2.5, 3.6), (3.7, 3.6))
    for expert in range(EXPERTS):
        y = 6.3 - 0.85 * expert
        chosen = expert in (2, 5)
        box(axes, (9.6, y), (3.4, 0.65), f"expert {expert}", show.rank_colour(expert // 2) if chosen else "#E4E4E4")
        if chosen:
            arrow(axes, (6.3, 3.6), (9.6, y + 0.33))
            arrow(axes, (13.0, y + 0.33), (17.6, 3.6))
            words = "0.67" if expert == 2 else "0.33"
            axes.text(
                15.0, y + (0.25 if expert == 2 else 0.05), words, ha="center", va="bottom", fontsize=12, color=INK
            )
    save(figure, "layer")


def layouts() -> None:
    """Eight ranks, tensor parallel in pairs: who exchanges tokens with whom."""
    figure, panels = plt.subplots(1, 2, figsize=(10.5, 2.3))
    for axes, split in zip(panels, (False, True), strict=True):
        made = expert_layout(8, tensor=2, expert=4, split_tokens=split)
        axes.set(xlim=(-0.8, 8.0), ylim=(-1.2, 1.5), aspect="equal")
        axes.axis("off")
        for pair in range(4):
            axes.add_patch(
                Rectangle((2 * pair - 0.45, -0.5), 1.9, 1.0, facecolor="none", edgecolor=FAINT, linestyle=":")
            )
        for index, group in enumerate(made.expert):
            for rank in group:
                axes.add_patch(Circle((rank, 0), 0.36, color=show.rank_colour(index)))
                axes.text(rank, 0, str(rank), ha="center", va="center", color="white", fontsize=12)
            for a, b in pairwise(group):
                bend = FancyArrowPatch(
                    (a, 0.36), (b, 0.36), connectionstyle="arc3,rad=-0.5", color=show.rank_colour(index), linewidth=1.5
                )
                axes.add_patch(bend)
        words = "Tokens are split over each pair" if split else "Each pair has the same tokens"
        axes.set_title(words, fontsize=12)
        axes.text(3.5, -0.75, "dotted: tensor-parallel pairs", ha="center", va="top", fontsize=11, color=FAINT)
    save(figure, "layouts")


# --- Runs -------------------------------------------------------------------------------------------------------------


def train_on_text(changes: dict) -> dict:
    """On every rank: train with a config of the reference solution; losses, load and drops by step."""
    from labs.day3_model_parallel.mixture_of_experts import MoEConfig
    from labs.day3_model_parallel.watched_mixture_of_experts import train
    from shardlab.data import corpus_tokens, token_batches

    torch.set_num_threads(1)
    config = MoEConfig(SHAPE.hidden, ffn=64, experts=EXPERTS, **({"balance_coefficient": 0.03} | changes))
    batches = token_batches(corpus_tokens("train", SHAPE.vocab), 8, SHAPE.sequence, seed=0)
    run = train(SHAPE, config, (batch for _, batch in zip(range(STEPS), batches, strict=False)))
    return {"losses": run.losses, "asked": torch.stack(run.asked)[:, 0], "drops": run.drops}


def rows_between_ranks() -> list[int]:
    """On every rank: how many rows it sends to each, in a layer as it begins, on text."""
    from labs.day3_model_parallel import mixture_of_experts as moe
    from shardlab.data import corpus_tokens, token_batches
    from shardlab.models import build

    config = moe.MoEConfig(SHAPE.hidden, ffn=64, experts=EXPERTS)
    model = moe.use_experts(build(SHAPE), config)
    tokens = next(token_batches(corpus_tokens("train", SHAPE.vocab), 8, SHAPE.sequence, seed=0))
    caught = []
    model.blocks[0].mlp.router.register_forward_hook(lambda _module, _inputs, routing: caught.append(routing.experts))
    model(tokens.chunk(RANKS)[dist.get_rank()])
    return torch.bincount(caught[0].flatten() // (EXPERTS // RANKS), minlength=RANKS).tolist()


def exchange(pool: RankPool) -> None:
    """Rows from each rank to each other: no two parts alike."""
    sent = torch.tensor(pool.run(rows_between_ranks, RANKS, timeout=120))
    figure, axes = plt.subplots(figsize=(5.4, 3.6))
    axes.imshow(sent, cmap="Blues", vmin=0, vmax=1.4 * sent.max().item())
    for source in range(RANKS):
        for target in range(RANKS):
            axes.text(target, source, str(sent[source, target].item()), ha="center", va="center", color=INK)
    axes.set(title="Rows that travel", xlabel="to rank", ylabel="from rank", xticks=range(RANKS), yticks=range(RANKS))
    axes.grid(visible=False)
    save(figure, "exchange")


def load(balanced: dict, unbalanced: dict) -> None:
    """Claims for each expert over time, with and without the balance loss."""
    figure, panels = plt.subplots(1, 2, figsize=(10.5, 3.4), sharey=True)
    for axes, run, words in zip(panels, (balanced, unbalanced), ("With", "Without"), strict=True):
        asked = run["asked"].double()
        share = (asked / asked.mean(1, keepdim=True)).T
        picture = axes.imshow(
            share, aspect="auto", cmap="viridis", vmin=0, vmax=3, interpolation="nearest", rasterized=True
        )
        axes.set(title=f"{words} the balance loss", xlabel="step", ylabel="expert")
        axes.grid(visible=False)
    figure.colorbar(picture, ax=panels, label="claims over the mean")
    save(figure, "load")


def capacity(pool: RankPool, dropless: dict) -> None:
    """Loss and drops by capacity factor, means of the last fifth of the steps."""
    runs = {
        f"{factor:g}": pool.run(train_on_text, 2, {"capacity_factor": factor}, timeout=300)[0] for factor in FACTORS
    }
    runs["none"] = dropless
    last = STEPS // 5
    losses = [statistics.mean(run["losses"][-last:]) for run in runs.values()]
    drops = [100 * statistics.mean(run["drops"][-last:]) for run in runs.values()]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.2))
    left.plot(list(runs), losses, "o-")
    left.set(title="Loss", xlabel="capacity factor", ylabel="nats per token")
    right.bar(list(runs), drops, color="#AA3377")
    right.set(title="Claims dropped", xlabel="capacity factor", ylabel="%", ylim=(0, 100))
    print({name: (round(loss, 3), round(drop, 1)) for name, loss, drop in zip(runs, losses, drops, strict=True)})
    save(figure, "capacity")


def main() -> None:
    show.use_style()
    layer()
    layouts()
    with workspace(ROOT, ROOT / "solutions") as place, RankPool(path=[place]) as pool:
        exchange(pool)
        balanced, unbalanced = (
            pool.run(train_on_text, 2, changes, timeout=300)[0] for changes in ({}, {"balance_coefficient": 0.0})
        )
        load(balanced, unbalanced)
        capacity(pool, balanced)
        for words, run in (("balance loss", balanced), ("none", unbalanced)):
            recent = run["asked"][-STEPS // 5 :].sum(0).double()
            loss = statistics.mean(run["losses"][-STEPS // 5 :])
            print(f"{words}: busiest over mean {recent.max() / recent.mean():.2f}, loss {loss:.3f}")


if __name__ == "__main__":
    main()
