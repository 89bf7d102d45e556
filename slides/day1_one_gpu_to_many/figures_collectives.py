"""The pictures of 3_collectives.md. From the root of the checkout:

    python -m slides.day1_one_gpu_to_many.figures_collectives

Everything in them is computed here: patterns come from runs of the reference solution on real ranks, curves from its
cost model. Only the last one shows measured times; they lie beside it, with the machine they come from, as
run_collectives.py wrote them:

    torchrun --standalone --nproc-per-node 4 labs/day1_one_gpu_to_many/run_collectives.py
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from shardlab import show
from shardlab.observe import Traffic
from shardlab.ranks import run_ranks
from solutions.day1_one_gpu_to_many import collectives

HERE = Path(__file__).parent / "figures"
INK, FAINT = "#222222", "#888888"
ALGORITHMS = collectives.ALL_REDUCE_ALGORITHMS
NAMES = dict(zip(ALGORITHMS, ("ring", "recursive doubling", "tree"), strict=True))
COLOURS = {name: show.rank_colour(index) for index, name in enumerate(ALGORITHMS)}

Block = frozenset[int]  # whose pieces are in it

# --- Blocks of tensors, striped by whose pieces are in them -----------------------------------------------------------


def draw_blocks(axes: Axes, rows: Sequence[Sequence[Block]], labels: bool = False) -> None:
    """One row per rank, one square per block, one stripe per rank whose piece is in the block."""
    for y, row in enumerate(rows):
        for x, block in enumerate(row):
            for index, owner in enumerate(sorted(block)):
                width = 0.86 / len(block)
                place = (x + 0.07 + index * width, y + 0.07)
                axes.add_patch(Rectangle(place, width, 0.86, color=show.rank_colour(owner), linewidth=0))
            axes.add_patch(Rectangle((x + 0.07, y + 0.07), 0.86, 0.86, fill=False, color="#BBBBBB", linewidth=0.8))
    axes.set(xlim=(0, max(map(len, rows))), ylim=(len(rows), 0), aspect="equal")
    axes.set_yticks([y + 0.5 for y in range(len(rows))], [f"rank {y}" for y in range(len(rows))] if labels else [])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def what_they_do() -> None:
    """Five collectives on four ranks, before and after."""
    ranks = range(4)
    everyone, nothing = frozenset(ranks), frozenset()
    own = [[frozenset({rank})] * 4 for rank in ranks]
    pictures = {
        "broadcast": ([[frozenset({0})] * 4, *[[nothing] * 4] * 3], [[frozenset({0})] * 4] * 4),
        "reduce-scatter": (own, [[everyone if rank == block else nothing for block in ranks] for rank in ranks]),
        "all-gather": (
            [[frozenset({rank}) if rank == block else nothing for block in ranks] for rank in ranks],
            [[frozenset({block}) for block in ranks]] * 4,
        ),
        "all-reduce": (own, [[everyone] * 4] * 4),
        "all-to-all": (own, [[frozenset({block}) for block in ranks]] * 4),
    }
    figure, axes = plt.subplots(2, 5, figsize=(12, 5))
    for column, (name, (before, after)) in enumerate(pictures.items()):
        draw_blocks(axes[0, column], before, labels=column == 0)
        draw_blocks(axes[1, column], after, labels=column == 0)
        axes[0, column].set_title(name, loc="center", fontsize=15)
    axes[0, 0].set_ylabel("before", fontsize=14, fontweight="bold")
    axes[1, 0].set_ylabel("after", fontsize=14, fontweight="bold")
    save(figure, "what")


def film_ring(ranks: int) -> list[list[list[Block]]]:
    """Per frame and rank, whose pieces are in each chunk: before the first round of a real ring, and after each."""
    tensors = run_ranks(film, ranks)
    return [[[owners(value, ranks) for value in tensor] for tensor in frame] for frame in zip(*tensors, strict=True)]


def film() -> list[list[int]]:
    """On a rank: a ring over one chunk per rank, filled with 2 ** rank, seen before each exchange and at the end."""
    tensor = torch.full((dist.get_world_size(),), 2 ** dist.get_rank())
    frames, exchange = [], collectives.exchange

    def filmed(*arguments: object, **options: object) -> None:
        frames.append(tensor.tolist())
        exchange(*arguments, **options)

    collectives.exchange = filmed
    collectives.ring_all_reduce(tensor)
    return [*frames, tensor.tolist()]


def owners(value: int, ranks: int) -> Block:
    return frozenset(rank for rank in range(ranks) if value >> rank & 1)


def ring_halves() -> None:
    """The two halves of a ring over 4 ranks, round by round."""
    frames = film_ring(4)
    for name, half in {"reduce_scatter": frames[:4], "all_gather": frames[3:]}.items():
        figure, axes = plt.subplots(1, 4, figsize=(12, 3.6))
        for number, (panel, frame) in enumerate(zip(axes, half, strict=True)):
            draw_blocks(panel, frame, labels=number == 0)
            panel.set_title(f"after round {number}" if number else "at the start", loc="center", fontsize=14)
            panel.set_xticks([x + 0.5 for x in range(4)], [f"chunk {x}" for x in range(4)], fontsize=10)
        save(figure, f"ring_{name}")


def wrong_buffer() -> None:
    """A ring that passes on its own piece instead of the partial sum: whose pieces reach a chunk, on 2 and 4 ranks."""
    figure, axes = plt.subplots(1, 4, figsize=(12, 3.6), width_ratios=[1, 1, 2, 2])
    for pair, ranks in ((axes[:2], 2), (axes[2:], 4)):
        right = [[frozenset(range(ranks))] * ranks] * ranks
        wrong = [[frozenset({chunk, (chunk - 1) % ranks}) for chunk in range(ranks)]] * ranks
        for panel, rows, title in zip(pair, (right, wrong), ("right", "wrong buffer"), strict=True):
            draw_blocks(panel, rows, labels=title == "right")
            panel.set_title(f"{ranks} ranks:\n{title}", loc="center", fontsize=13)
    save(figure, "wrong_buffer")


# --- Messages of trees ------------------------------------------------------------------------------------------------


def sends(name: str, *arguments: object) -> tuple[list[tuple[str, int]], int]:
    """On a rank: what a collective of the solution sent and received, in order, and the bytes it sent."""
    with Traffic() as traffic:
        getattr(collectives, name)(torch.ones(840), *arguments)
    return [(call.op, call.peer) for call in traffic.calls], traffic.sent_bytes()


def tree_messages(name: str, ranks: int, *arguments: object) -> list[tuple[int, int, int]]:
    """(round, sender, receiver) of each message: a round later than the last message of either end."""
    to_do = [calls for calls, _ in run_ranks(sends, ranks, name, *arguments)]
    clock, messages = [0] * ranks, []
    while any(to_do):
        firsts = [calls[0] if calls else ("done", -1) for calls in to_do]
        sender = next(rank for rank, (op, peer) in enumerate(firsts) if op == "send" and firsts[peer] == ("recv", rank))
        receiver = firsts[sender][1]
        del to_do[sender][0], to_do[receiver][0]
        clock[sender] = clock[receiver] = 1 + max(clock[sender], clock[receiver])
        messages.append((clock[sender], sender, receiver))
    return messages


def draw_messages(axes: Axes, messages: Sequence[tuple[int, int, int]], ranks: int) -> None:
    """Time from left to right, an arrow per message in the sender's colour."""
    rounds = max(number for number, _, _ in messages)
    for rank in range(ranks):
        axes.plot([0, rounds], [rank, rank], color=show.rank_colour(rank), linewidth=1, alpha=0.35)
    for number, sender, receiver in messages:
        arrow = {"arrowstyle": "-|>", "color": show.rank_colour(sender), "linewidth": 2.5, "mutation_scale": 18}
        axes.annotate("", (number, receiver), (number - 1, sender), arrowprops={**arrow, "shrinkA": 0, "shrinkB": 2})
    axes.set(xlim=(-0.15, rounds + 0.15), ylim=(ranks - 0.6, -0.4), xlabel="round")
    axes.set_xticks(range(rounds + 1))
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)])
    axes.grid(False)


def trees() -> None:
    for name, arguments in {"broadcast": (0,), "tree_all_reduce": ()}.items():
        figure, axes = plt.subplots(figsize=(11, 4.6))
        draw_messages(axes, tree_messages(name, 8, *arguments), 8)
        save(figure, name.removesuffix("_all_reduce"))
    figure, axes = plt.subplots(1, 2, figsize=(12, 4.6))
    for panel, ranks in zip(axes, (8, 6), strict=True):
        calls = [[peer for op, peer in own if op == "send"] for own, _ in doubling(ranks)]
        draw_messages(panel, swaps(calls, ranks), ranks)
        panel.set_title(f"{ranks} ranks")
    save(figure, "doubling")


def doubling(ranks: int) -> list[tuple[list[tuple[str, int]], int]]:
    return run_ranks(sends, ranks, "recursive_doubling_all_reduce")


def swaps(peers: Sequence[Sequence[int]], ranks: int) -> list[tuple[int, int, int]]:
    """(round, sender, receiver) of recursive doubling, from the peers each rank sent to, in order."""
    power = 1 << (ranks.bit_length() - 1)
    before = int(ranks > power)
    levels = power.bit_length() - 1
    messages = []
    for rank, own in enumerate(peers):
        for index, peer in enumerate(own):
            number = 1 if rank >= power else 1 + before + index
            messages.append((number, rank, peer))
    assert max(number for number, _, _ in messages) == levels + 2 * before
    return messages


# --- Costs ------------------------------------------------------------------------------------------------------------

ALPHA, BETA = 10e-6, 1 / 25e9  # a good network: 10 us to get going, 25 GB/s (200 Gbit/s)
TICKS = [2**power for power in range(10, 31, 5)]


def byte_axis(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_xticks(TICKS, ["1 KiB", "32 KiB", "1 MiB", "32 MiB", "1 GiB"])
    axes.minorticks_off()


def one_message() -> None:
    sizes = [2**power for power in range(10, 31)]
    half = ALPHA / BETA
    figure, axes = plt.subplots(figsize=(7, 5))
    axes.plot(sizes, [1e6 * (ALPHA + size * BETA) for size in sizes], color=INK)
    axes.axhline(1e6 * ALPHA, color=show.rank_colour(0), linestyle="--", label="alpha: to get going")
    axes.plot(
        sizes, [1e6 * size * BETA for size in sizes], "--", color=show.rank_colour(1), label="n beta: to send n bytes"
    )
    axes.plot(half, 2e6 * ALPHA, "o", color=INK)
    axes.annotate(
        f"equal at {half / 1e3:.0f} KB", (half, 2e6 * ALPHA), (half / 60, 6e6 * ALPHA), arrowprops={"arrowstyle": "-"}
    )
    axes.set(yscale="log", ylabel="us", ylim=(1, None), title=f"alpha {1e6 * ALPHA:.0f} us, {1e-9 / BETA:.0f} GB/s")
    byte_axis(axes)
    axes.legend()
    save(figure, "message")


def bytes_per_rank() -> None:
    """What each of 8 ranks sends in each all-reduce, from the ledger."""
    figure, axes = plt.subplots(figsize=(11, 4.6))
    tensor = 840 * 4
    for index, name in enumerate(ALGORITHMS):
        sent = [own for _, own in run_ranks(sends, 8, name)]
        places = [index + 0.1 * (rank - 3.5) for rank in range(8)]
        axes.bar(
            places, [own / tensor for own in sent], width=0.09, color=[show.rank_colour(rank) for rank in range(8)]
        )
        axes.text(index, 3.15, f"all together {sum(sent) / tensor:g} n", ha="center", fontsize=13)
    axes.set(ylabel="bytes sent, in tensors", ylim=(0, 3.4), title="One bar per rank, 8 ranks")
    axes.set_xticks(range(3), [NAMES[name] for name in ALGORITHMS], fontsize=13)
    save(figure, "bytes")


def seconds_by_size() -> None:
    figure, axes = plt.subplots(figsize=(11, 4.8))
    sizes = [2 ** (power / 4) for power in range(40, 121)]
    for name in ALGORITHMS:
        predict = partial(collectives.predict_seconds, name, ranks=64, alpha=ALPHA, beta=BETA)
        axes.plot(sizes, [1e3 * predict(size) for size in sizes], color=COLOURS[name], label=NAMES[name])
    fastest = [collectives.fastest_algorithm(size, 64, ALPHA, BETA) for size in sizes]
    crossover = sizes[fastest.index("ring_all_reduce")]
    axes.axvline(crossover, color=FAINT, linewidth=1)
    axes.annotate(f"the ring wins from {crossover / 1e6:.1f} MB on", (crossover * 1.15, 0.05), fontsize=12, color=INK)
    axes.set(
        yscale="log", ylabel="ms", title=f"All-reduce on 64 ranks, alpha {1e6 * ALPHA:.0f} us, {1e-9 / BETA:.0f} GB/s"
    )
    byte_axis(axes)
    axes.legend()
    save(figure, "sizes")


def seconds_by_ranks() -> None:
    figure, panels = plt.subplots(1, 2, figsize=(12, 4.6))
    counts = [2**power for power in range(1, 13)]
    for axes, (size, words) in zip(panels, {4096: "4 KiB", 2**30: "1 GiB"}.items(), strict=True):
        for name in ALGORITHMS:
            times = [1e3 * collectives.predict_seconds(name, size, ranks, ALPHA, BETA) for ranks in counts]
            axes.plot(counts, times, "o-", color=COLOURS[name], label=NAMES[name])
        axes.set(title=f"All-reduce of {words}", xlabel="ranks", ylabel="ms", yscale="log", xscale="log")
        axes.set_xticks(counts[1::2], counts[1::2])
        axes.minorticks_off()
    panels[0].legend()
    save(figure, "ranks")


def bandwidths() -> None:
    """Algorithm and bus bandwidth of a ring that fills its links of 25 GB/s, by number of ranks."""
    counts, size = [2**power for power in range(1, 11)], 2**30
    seconds = [collectives.predict_seconds("ring_all_reduce", size, ranks, 0, BETA) for ranks in counts]
    algorithm = [size / time / 1e9 for time in seconds]
    bus = [
        collectives.bus_bandwidth("all_reduce", size, time, n) / 1e9 for time, n in zip(seconds, counts, strict=True)
    ]
    figure, axes = plt.subplots(figsize=(7, 4.8))
    axes.plot(counts, bus, "o-", color=show.rank_colour(2), label="busbw")
    axes.plot(counts, algorithm, "o-", color=show.rank_colour(1), label="algbw")
    axes.set(xlabel="ranks", ylabel="GB/s", ylim=(0, 30), xscale="log", title="A perfect ring, links of 25 GB/s")
    axes.set_xticks(counts[::3], counts[::3])
    axes.minorticks_off()
    axes.legend(loc="lower left")
    save(figure, "busbw")


def overlap() -> None:
    """Four layers' backward, and a ring for each layer's gradient: waited for at once, or in the background."""
    compute, gradient, ranks = 8.0, 100e6, 8
    ring = 1e3 * collectives.predict_seconds("ring_all_reduce", int(gradient), ranks, ALPHA, BETA)
    timeline = show.Timeline(
        f"Backward of 4 layers, {gradient / 1e6:.0f} MB of gradients each, {ranks} ranks", unit="ms"
    )
    clock = 0.0
    for layer in (3, 2, 1, 0):
        timeline.add("waiting: compute", clock, clock + compute, f"layer {layer}", "backward")
        timeline.add("waiting: network", clock + compute, clock + compute + ring, f"ring {layer}", "communication")
        clock += compute + ring
    free = 0.0
    for index, layer in enumerate((3, 2, 1, 0)):
        start = index * compute
        timeline.add("async_op: compute", start, start + compute, f"layer {layer}", "backward")
        free = max(free, start + compute) + ring
        timeline.add("async_op: network", free - ring, free, f"ring {layer}", "communication")
    timeline.save(HERE / "collectives_overlap.svg")


def measured() -> None:
    """The sweep that run_collectives.py wrote, with its machine."""
    record = json.loads((HERE / "collectives_measured.json").read_text())
    rows = [row for row in record["data"]["rows"] if row["op"] == "all_reduce"]
    machine = record["machine"]
    figure, axes = plt.subplots(figsize=(11, 4.8))
    for index, name in enumerate(dict.fromkeys(row["algorithm"] for row in rows)):
        own = [row for row in rows if row["algorithm"] == name]
        style = {"color": show.rank_colour(index), "label": NAMES.get(name, name)}
        axes.plot([row["num_bytes"] for row in own], [1e3 * row["seconds"] for row in own], "o-", **style)
    ranks, cores = record["data"]["ranks"], machine["cores"]
    axes.set(title=f"{ranks} ranks on {cores} cores ({machine['processor']}), torch {record['versions']['torch']}")
    axes.set(xscale="log", yscale="log", ylabel="ms")
    sizes = sorted({row["num_bytes"] for row in rows})[::2]
    axes.set_xticks(sizes, [f"{size // 1024:,} KiB" for size in sizes])
    axes.minorticks_off()
    axes.legend()
    save(figure, "measured")


def save(figure: plt.Figure, name: str) -> None:
    show.save_figure(figure, HERE / f"collectives_{name}.svg")
    plt.close(figure)


def main() -> None:
    show.use_style()
    plt.rcParams.update({"font.size": 13, "axes.titlesize": 14})
    for picture in (
        what_they_do,
        one_message,
        trees,
        ring_halves,
        bytes_per_rank,
        seconds_by_size,
        seconds_by_ranks,
        bandwidths,
        overlap,
        wrong_buffer,
        measured,
    ):
        picture()


if __name__ == "__main__":
    main()
