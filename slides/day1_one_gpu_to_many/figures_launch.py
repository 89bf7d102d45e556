"""The pictures of 4_launch.md. From the root of the checkout:

    python -m slides.day1_one_gpu_to_many.figures_launch

Groups, random numbers, bytes and boards come from runs of the reference solution on real ranks; the boards are those of
real hangs.
"""

from __future__ import annotations

import threading
from datetime import timedelta
from pathlib import Path

import matplotlib.pyplot as plt
import torch
import torch.distributed as dist
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from shardlab import show
from shardlab.observe import Traffic
from shardlab.ranks import run_ranks
from solutions.day1_one_gpu_to_many import launch

HERE = Path(__file__).parent / "figures"
INK, FAINT = "#222222", "#888888"


def bare(axes: Axes, width: float, height: float) -> None:
    """A place to draw on, without ticks or spines, the origin on the upper left."""
    axes.set(xlim=(0, width), ylim=(height, 0), aspect="equal")
    axes.axis("off")


def box(axes: Axes, x: float, y: float, text: str, colour: str, width: float = 0.92) -> None:
    axes.add_patch(Rectangle((x, y), width, 0.92, color=colour))
    axes.text(x + width / 2, y + 0.46, text, ha="center", va="center", color="white", fontsize=13)


# --- Processes --------------------------------------------------------------------------------------------------------


def numbers_of_a_process() -> None:
    """Two nodes with four workers each: agents, ranks and local ranks."""
    figure, axes = plt.subplots(figsize=(12, 4.2))
    bare(axes, 12, 4.2)
    for node in range(2):
        left = 6.1 * node
        axes.add_patch(Rectangle((left, 0.7), 5.8, 3.4, fill=False, color=FAINT))
        axes.text(left + 0.2, 1.15, f"node {node}", fontsize=14, fontweight="bold", color=INK)
        axes.text(left + 2.9, 1.75, "torchrun: the agent", ha="center", fontsize=13, color=INK)
        for local_rank in range(4):
            rank = 4 * node + local_rank
            box(axes, left + 0.3 + 1.35 * local_rank, 2.2, f"rank {rank}", show.rank_colour(rank), 1.2)
            axes.text(left + 0.9 + 1.35 * local_rank, 3.6, f"local {local_rank}", ha="center", fontsize=13, color=INK)
    axes.annotate("", (6.9, 0.45), (4.9, 0.45), arrowprops={"arrowstyle": "<|-|>", "color": INK, "linewidth": 2})
    axes.text(5.95, 0.2, "rendezvous", ha="center", fontsize=14, color=INK)
    save(figure, "ranks")


def my_groups(layout: dict[str, int]) -> dict[str, list[int]]:
    return {name: dist.get_process_group_ranks(group) for name, group in launch.make_groups(layout).items()}


def groups() -> None:
    """Eight ranks as 2 x 2 x 2: the groups of each dimension, as made on real ranks."""
    layout = {"dp": 2, "pp": 2, "tp": 2}
    made = run_ranks(my_groups, 8, layout)
    figure, panels = plt.subplots(1, 3, figsize=(12, 3.4))
    for panel, name in zip(panels, layout, strict=True):
        lines = sorted({tuple(mine[name]) for mine in made})
        bare(panel, 4, 2)
        for rank, mine in enumerate(made):
            box(panel, rank % 4, rank // 4, str(rank), show.rank_colour(lines.index(tuple(mine[name]))))
        panel.set_title(f"{name}\n{'  '.join(map(str, lines))}", loc="center", fontsize=14)
    save(figure, "groups")


# --- Random numbers ---------------------------------------------------------------------------------------------------


def masks() -> None:
    """Dropout masks of four ranks in two runs: one seed, seed + rank, and mixed."""

    def seed_alike(seed: int, rank: int) -> None:
        torch.manual_seed(seed)

    def seed_added(seed: int, rank: int) -> None:
        torch.manual_seed(seed + rank)

    def seed_mixed(seed: int, rank: int) -> None:
        launch.seed_everything(seed, rank, per_rank=True)

    kinds = {"the same seed": seed_alike, "seed + rank": seed_added, "seed and rank, mixed": seed_mixed}
    figure, panels = plt.subplots(1, 3, figsize=(12, 4))
    for panel, (title, seed_with) in zip(panels, kinds.items(), strict=True):
        rows = []
        for seed in (0, 1):
            for rank in range(4):
                seed_with(seed, rank)
                rows.append((torch.rand(24) > 0.5).int().tolist())
        panel.imshow(rows, cmap="Blues", aspect="auto", vmin=0, vmax=1.4)
        panel.axhline(3.5, color="white", linewidth=5)
        labels = [f"seed {seed}, rank {rank}" for seed in (0, 1) for rank in range(4)]
        panel.set_yticks(range(8), labels if panel is panels[0] else [])
        panel.set_xticks([])
        panel.set_title(f"{title}\n{len(set(map(tuple, rows)))} different masks of 8", loc="center", fontsize=14)
        panel.grid(False)
    save(figure, "masks")


def bytes_of_a_check(numel: int) -> tuple[int, int]:
    """On a rank: what it sends to compare a tensor by digests, and to gather it."""
    tensor = torch.ones(numel)
    with Traffic() as by_digest:
        launch.assert_same_on_all_ranks(tensor, "tensor")
    with Traffic() as gathered:
        dist.all_gather([torch.empty_like(tensor) for _ in range(dist.get_world_size())], tensor)
    return by_digest.sent_bytes(), gathered.sent_bytes()


def digests() -> None:
    """Bytes that one of four ranks sends to compare a tensor."""
    sizes = [4**power for power in range(11)]
    sent = [run_ranks(bytes_of_a_check, 4, numel)[0] for numel in sizes]
    figure, axes = plt.subplots(figsize=(9, 4.4))
    for index, name in enumerate(("a digest", "the tensor")):
        style = {"color": show.rank_colour(index), "label": name}
        axes.plot([4 * numel for numel in sizes], [pair[index] for pair in sent], "o-", **style)
    axes.set(xscale="log", yscale="log", xlabel="bytes of the tensor", ylabel="bytes sent by one of 4 ranks")
    axes.legend()
    save(figure, "digest")


# --- Hangs ------------------------------------------------------------------------------------------------------------


def step_with(fault: str) -> None:
    odd = dist.get_rank() == 1
    gradient, loss = torch.ones(4096), torch.ones(1)
    dist.all_reduce(gradient)
    if fault == "slow" and odd:
        threading.Event().wait(2.5)
    if fault == "groups":
        for members in ([1, 3], [0, 2]) if odd else ([0, 2], [1, 3]):
            dist.new_group(members, timeout=timedelta(seconds=20))
    if fault == "order" and odd:
        dist.broadcast(loss, 0)
    if fault != "skip" or not odd:
        dist.all_reduce(gradient[:4000] if fault == "shape" and odd else gradient)
    dist.broadcast(loss, 0)


def board_of(fault: str) -> list[list[tuple]]:
    """On a rank: everybody's calls when nothing moved any more."""
    over, boards = threading.Event(), []

    def find(calls: list) -> launch.Mismatch | None:
        boards.append([[(call.op, call.shape) for call in made if call.op != launch.EXIT] for made in calls])
        return launch.first_mismatch(calls)

    watch = launch.HangWatch(find, launch.slow_ranks, launch.rank_logger("figures"), 1.0, lambda mismatch: over.set())

    def program() -> None:
        try:
            with watch:
                step_with(fault)
        except RuntimeError:  # held up by the watch
            return
        over.set()

    threading.Thread(target=program, daemon=True).start()
    over.wait(15)
    return boards[-1]


def clinic() -> None:
    """The boards of five real hangs: a row per rank, a bar per call, a colour per kind of call."""
    figure, panels = plt.subplots(1, 5, figsize=(12.5, 3), sharey=True)
    for panel, fault in zip(panels, ("skip", "shape", "order", "groups", "slow"), strict=True):
        board = run_ranks(board_of, 4, fault)[0]
        kinds = list(dict.fromkeys(kind for calls in board for kind in calls))
        for rank, calls in enumerate(board):
            for place, kind in enumerate(calls):
                panel.barh(rank, 0.9, left=place, color=show.rank_colour(kinds.index(kind)), height=0.75)
        panel.set_title(fault, loc="center", fontsize=15)
        panel.set(xlim=(0, 3), xticks=[])
        panel.set_yticks(range(4), [f"rank {rank}" for rank in range(4)], fontsize=13)
        panel.tick_params(length=0)
        panel.grid(False)
        panel.spines[:].set_visible(False)
    panels[0].invert_yaxis()
    save(figure, "clinic")


def chain() -> None:
    """Who waits for whom when rank 3 is late, and when ranks 0 and 1 take two groups in different orders."""
    figure, panels = plt.subplots(1, 2, figsize=(12, 3.4))
    places = [(0.3, 0.2), (2.6, 0.2), (0.3, 1.9), (2.6, 1.9)]
    pictures = {
        "rank 3 is late: a chain, and it is the end": [(0, 2, "dp"), (2, 3, "tp")],
        "ranks 0 and 1 in two orders: a circle": [(0, 1, "all"), (1, 0, "tp"), (2, 1, "all"), (3, 1, "all")],
    }
    for panel, (title, arrows) in zip(panels, pictures.items(), strict=True):
        bare(panel, 4.4, 3.1)
        for rank, (x, y) in enumerate(places):
            box(panel, x, y, f"rank {rank}", show.rank_colour(rank), 1.3)
        for source, target, name in arrows:
            start, end = ((places[rank][0] + 0.65, places[rank][1] + 0.46) for rank in (source, target))
            bend = "arc3,rad=0.25" if (target, source) in {(s, t) for s, t, _ in arrows} else "arc3"
            style = {"arrowstyle": "-|>", "color": INK, "linewidth": 2, "shrinkA": 42, "shrinkB": 42}
            panel.annotate("", end, start, arrowprops={**style, "connectionstyle": bend})
            middle = ((start[0] + end[0]) / 2, (start[1] + end[1]) / 2)
            across = start[1] == end[1]
            right, down = (0.0, -0.22) if across else (0.4, 0.1)
            if bend != "arc3":
                down = 0.45 if source < target else -0.35
            panel.text(middle[0] + right, middle[1] + down, name, ha="center", va="center", fontsize=12, color=INK)
        panel.set_title(title, loc="center", fontsize=15)
    save(figure, "chain")


def save(figure: plt.Figure, name: str) -> None:
    show.save_figure(figure, HERE / f"launch_{name}.svg")
    plt.close(figure)


def main() -> None:
    show.use_style()
    plt.rcParams.update({"font.size": 13, "axes.titlesize": 14})
    for picture in (numbers_of_a_process, groups, masks, digests, clinic, chain):
        picture()


if __name__ == "__main__":
    main()
