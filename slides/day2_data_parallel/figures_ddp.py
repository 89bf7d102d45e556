"""The pictures of 1_ddp.md. From the root of the checkout:

    python -m slides.day2_data_parallel.figures_ddp

All numbers in them are computed here, with the reference solution; the learning-rate picture trains for half a minute.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from torch.utils.data import BatchSampler, DistributedSampler

from shardlab import show
from shardlab.data import digits
from shardlab.models import DigitsConfig, build
from solutions.day2_data_parallel.ddp import (
    LAMB,
    LARS,
    ShardedSampler,
    assign_buckets,
    scaled_learning_rate,
    warmup_cosine,
)

HERE = Path(__file__).parent / "figures"


def simulate(backward: Sequence[float], messages: Sequence[tuple[int, float]]) -> list[tuple[float, float]]:
    """When each message is on the network, one after the other.

    Args:
        backward: seconds of each layer, in the order in which backward runs.
        messages: (number of layers that must be through before it can leave, seconds on the network).
    """
    spans, free = [], 0.0
    for layers, seconds in messages:
        start = max(free, sum(backward[:layers]))
        free = start + seconds
        spans.append((start, free))
    return spans


# --- Overlap ----------------------------------------------------------------------------------------------------------

LAYERS, BACKWARD_MS, NETWORK_MS = 6, 6.0, 5.0


def order(leave_after: Sequence[int], name: str) -> None:
    """Six layers; message i leaves once ``leave_after[i]`` layers are through. Both pictures have the same scale."""
    figure, axes = plt.subplots(figsize=(9, 2.4))
    messages = simulate([BACKWARD_MS] * LAYERS, [(layers, NETWORK_MS) for layers in leave_after])
    for index in range(LAYERS):
        layer = LAYERS - 1 - index
        start, end = messages[index]
        _span(axes, 0, index * BACKWARD_MS, (index + 1) * BACKWARD_MS, f"layer {layer}", "backward")
        _span(axes, 1, start, end, f"{layer}", "communication")
    axes.set_yticks([0, 1], labels=["processor", "network"])
    axes.invert_yaxis()
    axes.set(xlabel="ms", xlim=(0, LAYERS * (BACKWARD_MS + NETWORK_MS) + 1))
    axes.grid(axis="y", visible=False)
    show.save_figure(figure, HERE / f"{name}.svg")
    plt.close(figure)


def _span(axes: Axes, row: int, start: float, end: float, label: str, category: str) -> None:
    axes.barh(row, end - start, left=start, height=0.7, color=show.CATEGORY_COLOURS[category], edgecolor="white")
    axes.text((start + end) / 2, row, label, ha="center", va="center", color="white", fontsize=10)


# --- Buckets ----------------------------------------------------------------------------------------------------------


def buckets() -> None:
    """Parameters of the digits network, in the order in which their gradients come, filled into 0.1 MiB buckets."""
    model = build(DigitsConfig())
    names = {parameter: name for name, parameter in model.named_parameters()}
    packed = assign_buckets(list(model.parameters()), 0.1 * 2**20)
    figure, axes = plt.subplots(figsize=(10, 3.4))
    row = 0
    for number, bucket in enumerate(packed):
        for parameter in bucket:
            axes.barh(row, parameter.nbytes, color=show.rank_colour(number))
            axes.text(parameter.nbytes * 1.15, row, f"{parameter.nbytes:,} B", va="center", fontsize=10)
            row += 1
    axes.set_yticks(range(row), labels=[names[parameter] for bucket in packed for parameter in bucket])
    axes.invert_yaxis()
    axes.set(xscale="log", xlim=(20, 4e6), xlabel="bytes of gradient")
    totals = [sum(parameter.nbytes for parameter in bucket) for bucket in packed]
    axes.set_title("   ".join(f"bucket {number}: {total:,} B" for number, total in enumerate(totals)))
    axes.grid(axis="y", visible=False)
    show.save_figure(figure, HERE / "ddp_buckets.svg")


def bucket_sizes() -> None:
    """Time of backward and averaging by bucket size: 48 layers of 12 tensors, 14 MiB and 3 ms each, on 64 ranks."""
    layers, tensors, layer_bytes, layer_seconds, ranks = 48, 12, 14 * 2**20, 3e-3, 64
    alpha, beta = 10e-6, 1 / 12.5e9  # seconds per message of the ring, seconds per byte (100 Gbit/s)
    each = layer_bytes / tensors
    sizes, totals = [], []
    for per_bucket in (1, 2, 3, 6, 12, 24, 48, 96, 144, 288, 576):
        network = 2 * (ranks - 1) * alpha + 2 * (ranks - 1) / ranks * per_bucket * each * beta
        steps = [layer_seconds / tensors] * (layers * tensors)
        messages = [(last, network) for last in range(per_bucket, layers * tensors + 1, per_bucket)]
        sizes.append(per_bucket * each / 2**20)
        totals.append(1e3 * simulate(steps, messages)[-1][1])
    backward_ms = 1e3 * layers * layer_seconds
    figure, axes = plt.subplots(figsize=(9, 3.8))
    axes.plot(sizes, totals, marker="o")
    axes.axhline(backward_ms, color="grey", linewidth=1)
    axes.text(sizes[0], backward_ms * 0.8, "backward alone", color="grey", va="top")
    axes.axvline(25, color="grey", linewidth=1, linestyle=":")
    axes.text(26, max(totals) * 0.93, "torch: 25 MiB", color="grey")
    axes.set(xscale="log", xlabel="bucket, MiB", ylabel="ms", ylim=(0, None))
    axes.set_title("Backward and averaging, 672 MiB of gradients")
    show.save_figure(figure, HERE / "ddp_bucket_size.svg")


# --- Sampler ----------------------------------------------------------------------------------------------------------


def samplers() -> None:
    """Ten items on three ranks: ours, and torch's, which repeats two."""
    figure, (ours, theirs) = plt.subplots(2, 1, figsize=(9, 4.6))
    _deal(ours, [list(ShardedSampler(10, rank, 3, shuffle=False)) for rank in range(3)], "ShardedSampler")
    torchs = [list(DistributedSampler(range(10), 3, rank, shuffle=False)) for rank in range(3)]
    _deal(theirs, torchs, "torch's DistributedSampler")
    show.save_figure(figure, HERE / "ddp_sampler.svg")


def _deal(axes: Axes, shares: Sequence[Sequence[int]], title: str) -> None:
    seen: set[int] = set()
    for turn in range(max(map(len, shares))):
        for rank, share in enumerate(shares):
            if turn >= len(share):
                continue
            item = share[turn]
            again = item in seen
            seen.add(item)
            style = {"hatch": "///", "alpha": 0.45} if again else {}
            axes.add_patch(Rectangle((turn, rank), 0.92, 0.86, facecolor=show.rank_colour(rank), **style))
            ink = "black" if again else "white"
            axes.text(turn + 0.46, rank + 0.43, f"{item}", ha="center", va="center", color=ink, fontweight="bold")
    repeated = sum(map(len, shares)) - len(seen)
    axes.set_title(f"{title}: {len(seen)} items, {repeated} of them twice")
    axes.set(xlim=(-0.1, 5), ylim=(3, -0.1))
    axes.set_yticks([0.43, 1.43, 2.43], labels=[f"rank {rank}" for rank in range(3)])
    axes.set_xticks([])
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)


# --- Batch against learning rate --------------------------------------------------------------------------------------

BASE_BATCH, EPOCHS = 48, 3
WAYS = {
    "SGD, constant": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}, None),
    "SGD, sqrt rule": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}, "sqrt"),
    "SGD, linear rule": (torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}, "linear"),
    "LARS, linear rule": (LARS, {"lr": 2.0, "trust_coefficient": 0.002}, "linear"),
    "LAMB, sqrt rule": (LAMB, {"lr": 0.02}, "sqrt"),
}


def batch_rules() -> None:
    """Test accuracy of the digits network after three epochs, by batch and rule: one process, as N ranks would."""
    sizes = [BASE_BATCH * factor for factor in (1, 4, 16)]
    figure, axes = plt.subplots(figsize=(9, 4.2))
    for way, (optimizer, settings, rule) in WAYS.items():
        axes.plot(sizes, [accuracy(optimizer, settings, rule, batch) for batch in sizes], marker="o", label=way)
    axes.set(xscale="log", xlabel="batch", ylabel="test accuracy", title="The same three epochs of 4,000 digits")
    axes.set_xticks(sizes, labels=sizes)
    axes.minorticks_off()
    axes.legend()
    show.save_figure(figure, HERE / "ddp_batch_rules.svg")


def accuracy(optimizer_class: type, settings: dict, rule: str | None, batch: int) -> float:
    data, model = digits(), build(DigitsConfig(channels=8, hidden=32))
    peak = scaled_learning_rate(settings["lr"], batch, BASE_BATCH, rule) if rule else settings["lr"]
    optimizer = optimizer_class(model.parameters(), **settings)
    sampler = ShardedSampler(len(data.train_x), rank=0, world_size=1)
    steps = len(data.train_x) // batch
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for step, own in enumerate(BatchSampler(sampler, batch, drop_last=True)):
            total = EPOCHS * steps
            optimizer.param_groups[0]["lr"] = warmup_cosine(epoch * steps + step, peak, max(1, total // 10), total)
            optimizer.zero_grad()
            F.cross_entropy(model(data.train_x[own]), data.train_y[own]).backward()
            optimizer.step()
    with torch.no_grad():
        return (model(data.test_x).argmax(1) == data.test_y).float().mean().item()


def warm_up() -> None:
    steps = 100
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    for batch in (256, 1024, 4096):
        peak = scaled_learning_rate(0.1, batch, 256, "linear")
        axes.plot([warmup_cosine(step, peak, 10, steps) for step in range(steps)], label=f"batch {batch}")
    axes.set(title="Linear rule, 10 of 100 steps warm-up", xlabel="step", ylabel="learning rate")
    axes.legend()
    show.save_figure(figure, HERE / "ddp_warmup.svg")


# --- Memory -----------------------------------------------------------------------------------------------------------


def memory() -> None:
    """Bytes per parameter on every rank, mixed-precision Adam: weights, gradients, master weights, two moments."""
    parts = {"weights, bf16": 2, "gradients, bf16": 2, "master weights, fp32": 4, "Adam's moments, fp32": 8}
    counts = (1, 8, 64)
    figure, axes = plt.subplots(figsize=(8, 3.6))
    left = [0] * len(counts)
    for part, size in parts.items():
        axes.barh(range(len(counts)), [size] * len(counts), left=left, label=part)
        left = [start + size for start in left]
    axes.set_yticks(range(len(counts)), labels=[f"{count} ranks" if count > 1 else "1 rank" for count in counts])
    axes.invert_yaxis()
    axes.set(xlabel="bytes per parameter, on each rank", xlim=(0, 16.5))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.3), ncols=2)
    axes.grid(axis="y", visible=False)
    show.save_figure(figure, HERE / "ddp_memory.svg")


def main() -> None:
    torch.set_num_threads(1)
    show.use_style()
    order([LAYERS] * LAYERS, "ddp_after")
    order(range(1, LAYERS + 1), "ddp_during")
    buckets()
    bucket_sizes()
    samplers()
    warm_up()
    memory()
    batch_rules()


if __name__ == "__main__":
    main()
