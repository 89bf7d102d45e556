"""The pictures of 2_zero.md. From the root of the checkout:

    python -m slides.day2_data_parallel.figures_zero

All numbers in them are computed here, the measured ones on 4 ranks with the reference solution.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from torch import nn

from shardlab import show
from shardlab.models import TransformerConfig, build, next_token_loss
from shardlab.observe import PeakMemory, Traffic
from shardlab.ranks import device, run_ranks
from solutions.day2_data_parallel.zero import ZeroOptimizer, ZeroThree, own_pieces

HERE = Path(__file__).parent / "figures"
KINDS = {"parameters": 2, "gradients": 2, "states": 12}  # bytes per parameter, mixed-precision Adam
SHARDED = [(), ("states",), ("states", "gradients"), ("states", "gradients", "parameters")]
STAGES = ["data parallel", "ZeRO-1", "ZeRO-2", "ZeRO-3"]
GRADIENT, PARAMETER, PADDING = "#EE6677", "#4477AA", "#DDDDDD"


def bars(axes: Axes, sizes: dict[str, Sequence[float]], names: Sequence[str]) -> None:
    left = [0.0] * len(names)
    for kind, values in sizes.items():
        axes.barh(names, values, left=left, label=kind, color="#DDDDDD" if kind == "more at the peak" else None)
        left = [start + value for start, value in zip(left, values, strict=True)]
    axes.invert_yaxis()
    axes.grid(axis="y", visible=False)


# --- Memory -----------------------------------------------------------------------------------------------------------


def stages() -> None:
    """Figure 1 of the ZeRO paper: 7.5 billion parameters on 64 ranks."""
    figure, axes = plt.subplots(figsize=(9, 3.2))
    sizes = {
        kind: [7.5e9 * size / (64 if kind in sharded else 1) / 2**30 for sharded in SHARDED]
        for kind, size in KINDS.items()
    }
    bars(axes, sizes, STAGES)
    for row, parts in enumerate(zip(*sizes.values(), strict=True)):
        axes.text(sum(parts) + 1, row, f"{sum(parts):.1f} GiB", va="center")
    axes.set(xlabel="GiB on each of 64 ranks, 7.5 billion parameters", xlim=(0, 128))
    axes.legend()
    show.save_figure(figure, HERE / "zero_stages.svg")


def ranks_needed() -> None:
    """Bytes per rank of a 70 billion parameter model against the number of ranks."""
    counts = [2**power for power in range(11)]
    figure, axes = plt.subplots(figsize=(8, 3.8))
    for name, sharded in zip(STAGES, SHARDED, strict=True):
        totals = [
            sum(70e9 * size / (count if kind in sharded else 1) for kind, size in KINDS.items()) / 2**30
            for count in counts
        ]
        axes.plot(counts, totals, marker="o", label=name)
    axes.axhline(80, color="black", linewidth=1, linestyle="--")
    axes.text(1, 62, "80 GiB", va="top")
    axes.set(xscale="log", yscale="log", xlabel="ranks", ylabel="GiB on each rank")
    axes.set_xticks(counts, labels=counts)
    axes.minorticks_off()
    axes.legend()
    show.save_figure(figure, HERE / "zero_ranks.svg")


def measured() -> None:
    """What a rank of 4 really held, by `PeakMemory`, and sent, by `Traffic`."""
    seen = [run_ranks(observe, 4, stage)[0] for stage in (1, 2, 3)]
    sizes = {kind: [got[kind] / 2**20 for got in seen] for kind in ("parameters", "gradients", "states")}
    held = [sum(parts) for parts in zip(*sizes.values(), strict=True)]
    sizes["more at the peak"] = [got["peak"] / 2**20 - size for got, size in zip(seen, held, strict=True)]
    figure, axes = plt.subplots(figsize=(9, 3))
    bars(axes, sizes, STAGES[1:])
    for row, got in enumerate(seen):
        axes.text(
            got["peak"] / 2**20 + 0.1, row, f"sends {got['sent'] / got['psi']:.2f} times its parameters", va="center"
        )
    parameters = seen[0]["psi"] / 2**20
    axes.set(xlabel=f"MiB on rank 0 of 4, {parameters:.2f} MiB of fp32 parameters, Adam", xlim=(0, 15))
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, 1.25), ncols=4)
    show.save_figure(figure, HERE / "zero_measured.svg")


def observe(stage: int) -> dict[str, int]:
    config = TransformerConfig(vocab=1024, hidden=128, layers=4, heads=4, kv_heads=2, ffn=384, sequence=32, tied=False)
    tokens = torch.zeros(1, config.sequence, dtype=torch.int64, device=device())
    with PeakMemory() as memory:
        model = build(config).to(device())
        if stage == 3:
            optimizer = ZeroThree(model, torch.optim.AdamW, lr=1e-3)
        else:
            optimizer = ZeroOptimizer(model.parameters(), torch.optim.AdamW, stage, bucket_mb=0.5, lr=1e-3)
        next_token_loss(model(tokens), tokens).backward()
        optimizer.step()
        with Traffic() as traffic:
            next_token_loss(model(tokens), tokens).backward()
            dist.barrier()  # gloo's threads let go of their messages
            parameters, states = (memory.live_by_kind[kind] for kind in ("parameter", "optimizer"))
            gradients = memory.live_bytes - parameters - states
            optimizer.step()
    found = {"parameters": parameters, "gradients": gradients, "states": states, "peak": memory.peak_bytes}
    return {**found, "sent": traffic.sent_bytes(), "psi": 4 * config.parameters}


# --- What a rank owns -------------------------------------------------------------------------------------------------


def pieces() -> None:
    """Parameters end to end, cut into 4 shards."""
    sizes, ranks = {"weight": 15, "bias": 3, "norm": 3, "head": 12}, 4
    length = -(-sum(sizes.values()) // ranks)
    figure, axes = plt.subplots(figsize=(10, 2))
    for rank in range(ranks):
        offset = rank * length
        for _, start, stop in own_pieces(list(sizes.values()), rank, ranks):
            axes.barh(0, stop - start, left=offset, color=show.rank_colour(rank), edgecolor="white", linewidth=2)
            offset += stop - start
        if offset < (rank + 1) * length:
            axes.barh(0, (rank + 1) * length - offset, left=offset, color=PADDING, edgecolor="white", linewidth=2)
            axes.text((offset + (rank + 1) * length) / 2, 0, "padding", ha="center", va="center")
        axes.text((rank + 0.5) * length, -0.62, f"rank {rank}", ha="center", color=show.rank_colour(rank))
    offset = 0
    for name, size in sizes.items():
        axes.plot([offset, offset], [-0.4, 0.75], color="black", linewidth=1.5)
        axes.text(offset + size / 2, 0.55, f"{name}, {size}", ha="center")
        offset += size
    axes.set(yticks=[], xticks=[], ylim=(-0.85, 0.85))
    axes.grid(visible=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    show.save_figure(figure, HERE / "zero_pieces.svg")


# --- When: the order of events, as recorded ---------------------------------------------------------------------------

LAYERS = 4


def events(stage: int) -> list[str]:
    """The order of events of a training step of equal layers, on one rank of two."""
    layers = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16, bias=False)) for _ in range(LAYERS))).to(device())
    traffic = Traffic()
    for index, layer in enumerate(layers):
        layer[0].register_forward_pre_hook(lambda *_, index=index: traffic.mark(f"forward {index}"))
        layer[0].weight.register_post_accumulate_grad_hook(lambda _, index=index: traffic.mark(f"backward {index}"))
    if stage == 3:
        optimizer = ZeroThree(layers, torch.optim.SGD, prefetch=0, lr=0.1)
    else:
        optimizer = ZeroOptimizer(layers.parameters(), torch.optim.SGD, stage, bucket_mb=2**-10, lr=0.1)
    with traffic:
        layers(torch.ones(1, 16, device=device())).sum().backward()
        traffic.mark("update")
        optimizer.step()
    return [getattr(event, "name", None) or event.op for event in traffic.events]


def order(stage: int) -> None:
    colours = {
        "forward": show.CATEGORY_COLOURS["forward"],
        "backward": show.CATEGORY_COLOURS["backward"],
        "update": show.CATEGORY_COLOURS["optimizer"],
        "reduce_scatter": "#228833",
        "all_gather": "#CCBB44",
    }
    recorded = run_ranks(events, 2, stage)[0]
    figure, axes = plt.subplots(figsize=(12, 2))
    for place, event in enumerate(recorded):
        kind, _, number = event.partition(" ")
        row = 0 if kind in ("forward", "backward", "update") else 1
        axes.barh(row, 0.94, left=place, height=0.8, color=colours[kind])
        axes.text(place + 0.47, row, number, ha="center", va="center", color="white")
    for kind, colour in colours.items():
        axes.barh(0, 0, color=colour, label=kind.replace("_", "-"))
    axes.set_yticks([0, 1], labels=["computes", "asks the network"])
    axes.set(xticks=[], xlim=(0, max(21, len(recorded))))
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.35), ncols=5, fontsize=10)
    show.save_figure(figure, HERE / f"zero_order_{stage}.svg")


# --- Life of a layer --------------------------------------------------------------------------------------------------


def whole_layers() -> None:
    """Which layers are whole at each moment of a step of stage 3 with one layer fetched ahead, from its schedule."""
    layers, ahead = 6, 1
    figure, axes = plt.subplots(figsize=(9, 3.2))
    forward = [set(range(index, min(index + 1 + ahead, layers))) for index in range(layers)]
    backward = [set(range(max(index - ahead, 0), index + 1)) for index in reversed(range(layers))]
    for moment, whole in enumerate([*forward, *backward]):
        index = moment if moment < layers else 2 * layers - 1 - moment
        for layer in whole:
            colour = PARAMETER if moment < layers else GRADIENT
            axes.barh(layer, 0.94, left=moment, color=colour, alpha=1.0 if layer == index else 0.4)
    axes.set_yticks(range(layers), labels=[f"layer {layer}" for layer in range(layers)])
    axes.set_xticks([layers / 2, 3 * layers / 2], labels=["forward", "backward"])
    axes.axvline(layers - 0.03, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.grid(visible=False)
    axes.set_title("Whole on this rank: dark at work, light on its way")
    show.save_figure(figure, HERE / "zero_whole_layers.svg")


# --- Traffic ----------------------------------------------------------------------------------------------------------


def traffic() -> None:
    """Bytes a rank sends per step over the number of micro-batches, in units of the parameters' bytes."""
    counts = range(1, 9)
    figure, axes = plt.subplots(figsize=(8, 3.6))
    axes.plot(counts, [2] * 8, marker="o", label="ZeRO-1: 1 + 1")
    axes.plot(counts, [k + 1 for k in counts], marker="o", label="ZeRO-2: k + 1")
    axes.plot(counts, [3 * k for k in counts], marker="o", label="ZeRO-3: 3 k")
    axes.set(xlabel="micro-batches to a step, k", ylabel="times the parameters' bytes", ylim=(0, 25))
    axes.legend()
    show.save_figure(figure, HERE / "zero_accumulation.svg")


def main() -> None:
    show.use_style()
    stages()
    ranks_needed()
    pieces()
    measured()
    for stage in (1, 2, 3):
        order(stage)
    whole_layers()
    traffic()


if __name__ == "__main__":
    main()
