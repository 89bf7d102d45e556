"""The pictures of 2_single_gpu.md. From the root of the checkout:

    python -m slides.day1_one_gpu_to_many.figures_single_gpu

Everything in them is computed here, by the reference solution under the kit's counters, or from a formula that the
slide shows. Only the ladder shows measured times; they lie beside it, with the machine they come from, as
run_single_gpu.py wrote them:

    python labs/day1_one_gpu_to_many/run_single_gpu.py
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.nn.functional as F
from matplotlib.patches import Rectangle
from torch import Tensor, nn

from shardlab import show
from shardlab.observe import PeakMemory
from solutions.day1_one_gpu_to_many import single_gpu

HERE = Path(__file__).parent / "figures"
MIB = 2**20
INK, FAINT = "#222222", "#888888"
BLUE, RED = show.rank_colour(0), show.rank_colour(1)

# NVIDIA H100 SXM data sheet: dense bfloat16, and HBM3
H100_FLOPS, H100_BYTES = 989e12, 3.35e12


def roofline() -> None:
    """FLOP/s that a kernel can reach by its FLOPs per byte; attention with stored scores and in tiles."""
    width = 128
    figure, axes = plt.subplots(figsize=(7, 4.6))
    intensities = [1, H100_FLOPS / H100_BYTES, 8192]
    axes.plot(intensities, [reachable(value) / 1e12 for value in intensities], color=INK)
    for tokens, marker in ((1024, "o"), (8192, "s")):
        products = 4 * tokens**2 * width  # two matrix products, forward
        vectors = 4 * tokens * width * 2  # query, key, value, output in 2 bytes
        stored = 4 * tokens**2 * 2  # scores written and read, weights written and read
        for name, num_bytes, colour in (("scores stored", vectors + stored, RED), ("in tiles", vectors, BLUE)):
            at = products / num_bytes
            label = f"{name}, {tokens:,} tokens"
            axes.plot(at, reachable(at) / 1e12, marker, color=colour, markersize=11, label=label, clip_on=False)
    axes.set(title="An H100 and attention, forward, bfloat16", xlabel="FLOPs per byte", ylabel="TFLOP/s within reach")
    axes.set(xscale="log", yscale="log", xlim=(1, 8192))
    axes.set_xscale("log", base=2)
    axes.legend(fontsize=11)
    save(figure, "roofline")


def reachable(intensity: float) -> float:
    return min(H100_FLOPS, intensity * H100_BYTES)


def tiles() -> None:
    """Which tiles causal attention computes, of 8 x 8, with equal lengths and with a cache; as tile_scores says."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 4.4), width_ratios=[1, 1.4])
    for panel, queries, keys in ((axes[0], 64, 64), (axes[1], 32, 64)):
        query, key = torch.ones(1, queries, 4), torch.ones(1, keys, 4)
        for y, rows in enumerate(single_gpu.tiles(queries, 8)):
            for x, columns in enumerate(single_gpu.tiles(keys, 8)):
                scores = single_gpu.tile_scores(query, key, rows, columns, causal=True)
                colour = "#EEEEEE" if scores is None else BLUE if scores.isfinite().all() else RED
                panel.add_patch(Rectangle((x + 0.04, y + 0.04), 0.92, 0.92, color=colour, linewidth=0))
        panel.set(xlim=(0, keys // 8), ylim=(queries // 8, 0), aspect="equal", xlabel="tiles of keys")
        panel.set_title(f"{queries} queries, {keys} keys", loc="center")
        bare(panel)
    axes[0].set_ylabel("tiles of queries")
    names = {"computed": BLUE, "computed and masked": RED, "left out": "#EEEEEE"}
    patches = [Rectangle((0, 0), 1, 1, color=colour) for colour in names.values()]
    figure.legend(patches, names, loc="outside lower center", ncols=3)
    save(figure, "tiles")


def attention_memory() -> None:
    """Peak bytes of one attention, forward and backward, as the kit counts them."""
    lengths = [256, 512, 1024, 2048]
    ways = {
        "all scores": (naive, RED),
        "flash_attention": (partial(single_gpu.flash_attention, causal=True, block=128), BLUE),
    }
    figure, axes = plt.subplots(figsize=(7, 4.4))
    for name, (attention, colour) in ways.items():
        peaks = [peak_of(attention, *(torch.randn(1, 4, length, 16) for _ in range(3))) for length in lengths]
        axes.plot(lengths, [peak / MIB for peak in peaks], "o-", color=colour, label=name)
        for length, peak in ((lengths[-1], peaks[-1]),):
            axes.annotate(
                f"{peak / MIB:.1f} MiB", (length, peak / MIB), (-8, 10), textcoords="offset points", ha="right"
            )
    axes.set(title="4 heads of 16, float32, forward and backward", xlabel="tokens", ylabel="peak MiB beyond the inputs")
    axes.set(xscale="log", yscale="log", ylim=(0.3, 600))
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.legend(loc="upper left")
    save(figure, "attention_memory")


def naive(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ value


def peak_of(function: Callable[..., Tensor], *inputs: Tensor) -> int:
    """Peak bytes of forward and backward beyond the inputs."""
    inputs = tuple(tensor.requires_grad_() for tensor in inputs)
    with PeakMemory() as memory:
        function(*inputs).sum().backward()
    return memory.peak_bytes - sum(tensor.nbytes for tensor in inputs)


def loss_memory() -> None:
    """Peak bytes of the loss by chunk."""
    tokens, width, vocabulary = 2048, 64, 4096
    targets = torch.randint(vocabulary, (tokens,))
    chunks = [None, 1024, 256, 64]
    peaks = []
    for chunk in chunks:
        loss = (
            partial(single_gpu.chunked_cross_entropy, targets=targets, chunk=chunk)
            if chunk
            else lambda hidden, weight: F.cross_entropy(hidden @ weight.mT, targets)
        )
        peaks.append(peak_of(loss, torch.randn(tokens, width), torch.randn(vocabulary, width)) / MIB)
    figure, axes = plt.subplots(figsize=(7, 3.4))
    names = ["all logits", *(f"chunks of {chunk:,}" for chunk in chunks[1:])]
    axes.bar_label(axes.barh(names, peaks, color=[RED, BLUE, BLUE, BLUE]), fmt="%.1f", padding=4)
    title = f"{tokens:,} tokens, {vocabulary:,} words, width {width}, float32"
    axes.set(title=title, xlabel="peak MiB beyond the inputs", xlim=(0, 1.12 * max(peaks)))
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    save(figure, "loss_memory")


def formats() -> None:
    """What three formats can hold, on a scale of powers of two."""
    figure, axes = plt.subplots(figsize=(11, 3))
    kinds = (torch.float32, torch.bfloat16, torch.float16)
    for y, dtype in enumerate(kinds):
        info = torch.finfo(dtype)
        smallest, largest = math.log2(info.smallest_normal * info.eps), math.log2(info.max)
        normal = math.log2(info.smallest_normal)
        axes.barh(y, normal - smallest, left=smallest, color=show.rank_colour(y), alpha=0.35, height=0.55)
        axes.barh(y, largest - normal, left=normal, color=show.rank_colour(y), height=0.55)
        bits = round(-math.log2(info.eps))
        axes.text(1, y, f"{bits} bits", color="white", va="center", ha="center", fontsize=12)
    axes.axvline(math.log2(1e-9), color=INK, linewidth=1, linestyle="--")
    axes.text(math.log2(1e-9) - 2, -0.62, "a gradient of 1e-9", ha="right", fontsize=12)
    axes.set_yticks(range(3), [str(kind).removeprefix("torch.") for kind in kinds])
    axes.set(
        xlabel="power of two; in the bars, the mantissa (pale: fewer and fewer bits)", xlim=(-155, 135), ylim=(2.5, -1)
    )
    axes.grid(False, axis="y")
    save(figure, "formats")


def scaler() -> None:
    """The scale of a LossScaler whose gradients overflow above a scale of 2^15, and in one bad step."""
    weight = nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.0)
    own = single_gpu.LossScaler(scale=2.0**18, interval=8)
    values, skipped = [], []
    for step in range(60):
        values.append(own.value)
        weight.grad = torch.tensor([math.inf if own.value > 2**15 or step == 30 else own.value])
        if not own.step(optimizer):
            skipped.append(step)
    figure, axes = plt.subplots(figsize=(11, 3.4))
    axes.step(range(60), values, where="post")
    axes.plot(
        skipped, [values[step] for step in skipped], "x", color=show.rank_colour(3), markeredgewidth=3, markersize=11
    )
    axes.plot([], [], "x", color=show.rank_colour(3), markeredgewidth=3, markersize=11, label="step left out")
    axes.axhline(2**15, color=FAINT, linestyle="--", linewidth=1)
    axes.text(59, 2**15 * 1.15, "overflows above", ha="right", fontsize=12)
    axes.set_yscale("log", base=2)
    axes.set(xlabel="step", ylabel="scale", title="Interval of 8 steps, an unlucky batch at step 30")
    axes.legend()
    save(figure, "scaler")


def checkpoint_memory() -> None:
    """Bytes alive from block to block through forward and backward, with and without checkpoints."""
    figure, axes = plt.subplots(figsize=(7.4, 4.4))
    for name, run, colour in (
        ("everything kept", lambda block, x: block(x), RED),
        ("each block under a checkpoint", single_gpu.checkpoint, BLUE),
    ):
        axes.plot([value / MIB for value in live_bytes(run)], "o-", color=colour, label=name, markersize=4)
    axes.axvline(8, color=FAINT, linewidth=1)
    axes.text(7.8, 6, "forward", ha="right")
    axes.text(8.2, 6, "backward")
    axes.set(title="8 blocks, [1,024, 64] in, 256 wide inside", xlabel="blocks done", ylabel="MiB of tensors alive")
    axes.set(ylim=(0, 26))
    axes.legend(loc="upper right")
    save(figure, "checkpoint")


def live_bytes(run: Callable[..., Tensor]) -> list[int]:
    """Bytes alive at the start, after each block's forward, and after each block's backward."""
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(8))
    blocks, x = nn.ModuleList(layers), torch.randn(1024, 64, requires_grad=True)
    series = []
    with PeakMemory(blocks) as memory:
        series.append(memory.live_bytes)
        y = x
        for block in blocks:
            y.register_hook(lambda _: series.append(memory.live_bytes))  # runs when backward is done with what follows
            y = run(block, y)
            series.append(memory.live_bytes)
        loss = y.sum()
        del y
        loss.backward()
    return series


def accumulation() -> None:
    """The weight of each token in the gradient of two micro-batches, of 3 and of 1 valid token."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), sharey=True)
    colours = [BLUE] * 3 + [RED]
    for panel, title, weights in (
        (axes[0], "mean of means: 3.0", [1 / 6] * 3 + [1 / 2]),
        (axes[1], "mean over valid tokens: 2.0", [1 / 4] * 4),
    ):
        panel.bar_label(panel.bar(range(4), weights, color=colours), fmt="%.2f", padding=3)
        panel.set_title(title, loc="center")
        panel.set_xticks(range(4), ["gradient 1"] * 3 + ["gradient 5"], fontsize=10)
        panel.grid(False, axis="x")
    axes[0].set(ylabel="weight of the token", ylim=(0, 0.6))
    save(figure, "accumulation")


def ladder() -> None:
    """The rungs that run_single_gpu.py measured: time per step, and which were kept."""
    record = json.loads((HERE / "single_gpu_measured.json").read_text())
    rows = [row for row in record["data"]["rungs"] if not row["skipped"]]
    colours = [BLUE if row["kept"] else "#BBBBBB" for row in rows]
    names = [row["name"] for row in rows]
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 4.8), sharey=True)
    times = [1e3 * row["seconds"] for row in rows]
    sizes = [row["peak_bytes"] / MIB for row in rows]
    for axes, values, unit in ((left, times, "ms per step"), (right, sizes, "peak MiB")):
        axes.bar_label(axes.barh(names, values, color=colours), fmt="%.0f", padding=4)
        axes.set(xlabel=unit, xlim=(0, 1.14 * max(values)))
        axes.grid(False, axis="y")
    left.invert_yaxis()
    machine = record["machine"]
    figure.suptitle(f"One core of {machine['processor']}, torch {record['versions']['torch']}", fontsize=13)
    save(figure, "ladder")


def bare(axes: plt.Axes) -> None:
    axes.set_xticks([])
    axes.set_yticks([])
    axes.grid(False)
    axes.spines[:].set_visible(False)


def save(figure: plt.Figure, name: str) -> None:
    show.save_figure(figure, HERE / f"single_gpu_{name}.svg")
    plt.close(figure)


def main() -> None:
    torch.set_num_threads(1)  # two threads that share a busy core wait for each other
    show.use_style()
    plt.rcParams.update({"font.size": 13, "axes.titlesize": 14})
    torch.manual_seed(0)
    for picture in (
        roofline,
        tiles,
        attention_memory,
        loss_memory,
        formats,
        scaler,
        checkpoint_memory,
        accumulation,
        ladder,
    ):
        picture()


if __name__ == "__main__":
    main()
