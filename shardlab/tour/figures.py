"""The pictures of the tour."""

from __future__ import annotations

import base64
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib as mpl
from matplotlib.figure import Figure

from shardlab.show import rank_colour, save_figure, use_style
from shardlab.show.style import INK
from shardlab.tour.ladder import Rung, climbed
from shardlab.tour.outcome import MIB, Outcome, yardsticks

if TYPE_CHECKING:
    from matplotlib.axes import Axes

KINDS = {
    "parameter": ("parameters", "#4477AA"),
    "gradient": ("gradients", "#EE6677"),
    "optimizer": ("optimiser state", "#AA3377"),
    "activation": ("activations, temporaries", "#66CCEE"),
    "buffer": ("buffers", "#CCBB44"),
    "other": ("other", "#BBBBBB"),
}
LEGEND_COLUMNS = 4
SMALLEST_DRAWN = 1e-9  # a difference of zero has no place on a logarithmic axis


def draw_all(
    outcomes: Sequence[Outcome], rungs: Sequence[Rung], tolerance: float, predicted_bytes: int
) -> dict[str, str]:
    """Every picture by name, as a data URI for an <img>: so no picture's ids or styles meet another's.

    That of the ladder is missing where no rung was climbed.
    """
    with mpl.rc_context():
        use_style()
        figures = {
            "losses": losses(outcomes, tolerance),
            "memory": memory(outcomes),
            "traffic": traffic(outcomes, predicted_bytes),
            "speed": speed(outcomes),
        }
        if with_numbers := climbed(rungs):
            figures["ladder"] = ladder(with_numbers)
        return {name: data_uri(figure) for name, figure in figures.items()}


def data_uri(figure: Figure) -> str:
    """A figure as an SVG inside its own address."""
    with tempfile.TemporaryDirectory() as folder:
        content = save_figure(figure, Path(folder) / "figure.svg").read_bytes()
    return "data:image/svg+xml;base64," + base64.b64encode(content).decode()


def losses(outcomes: Sequence[Outcome], tolerance: float) -> Figure:
    """Loss curves on top of each other, and how far each is from its yardstick."""
    yardstick, *others = outcomes
    figure = Figure(figsize=(9.6, 4.0 + 0.25 * math.ceil(len(others) / LEGEND_COLUMNS)))
    curves, gaps = figure.subplots(1, 2)
    steps = range(1, len(yardstick.losses) + 1)
    curves.plot(steps, yardstick.losses, color="#C4C9D1", linewidth=9)
    curves.annotate(yardstick.strategy.name, (1, yardstick.losses[0]), xytext=(12, 0), textcoords="offset points")
    distances = [outcome.differences(of) for outcome, of in zip(others, yardsticks(outcomes)[1:], strict=True)]
    finite = [distance for each in distances for distance in each if distance < math.inf]
    gaps.set(yscale="log", ylim=(SMALLEST_DRAWN, 10 * max([tolerance, *finite])), autoscaley_on=False)
    for index, (outcome, distance) in enumerate(zip(others, distances, strict=True), start=1):
        look = {"color": rank_colour(index), "label": outcome.strategy.name}
        dashes = (3 * (index - 1), (3, 3 * (len(others) - 1)))  # each line shows in the gaps of the others
        curves.plot(steps, outcome.losses, **look, linestyle=dashes if len(others) > 1 else "-")
        gaps.plot(steps, distance, **look, linestyle="none", marker=".")
    curves.set(title="Loss of every strategy", xlabel="step", ylabel="nats per token")
    figure.legend(*gaps.get_legend_handles_labels(), loc="outside lower center", ncols=LEGEND_COLUMNS, markerscale=1.5)
    gaps.axhline(tolerance, color=INK, linewidth=1, linestyle=":")
    gaps.annotate("allowed", (1, tolerance), xytext=(0, 4), textcoords="offset points", fontsize=9)
    gaps.set(title=f"Distance from {yardstick.strategy.name}", xlabel="step", ylabel="relative difference")
    return figure


def bars(axes: Axes, names: Sequence[str], title: str, label: str) -> Axes:
    """Axes for one horizontal bar per name, the first at the top."""
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    axes.spines["left"].set_visible(False)
    axes.set(title=title, xlabel=label)
    return axes


def names_of(outcomes: Sequence[Outcome]) -> list[str]:
    """What their bars are called."""
    return [outcome.strategy.name for outcome in outcomes]


def height(bars: int) -> float:
    """Inches for a bar chart."""
    return 1.5 + 0.36 * bars


def write_values(axes: Axes, values: Sequence[float], form: str) -> None:
    """Each bar's value behind its end."""
    axes.margins(x=0.12)
    for row, value in enumerate(values):
        axes.annotate(
            form.format(value), (value, row), xytext=(5, 0), textcoords="offset points", va="center", fontsize=10
        )


def memory(outcomes: Sequence[Outcome]) -> Figure:
    """Peak bytes per rank, stacked by what they are."""
    figure = Figure(figsize=(9.6, height(len(outcomes)) + 0.3))
    axes = bars(figure.subplots(), names_of(outcomes), "Peak memory of a rank", "MiB of live tensors")
    left = [0.0] * len(outcomes)
    for kind, (name, colour) in KINDS.items():
        sizes = [outcome.peak_by_kind.get(kind, 0) / MIB for outcome in outcomes]
        if any(size > 0.05 for size in sizes):
            axes.barh(range(len(outcomes)), sizes, left=left, color=colour, label=name, height=0.62)
        left = [before + size for before, size in zip(left, sizes, strict=True)]
    write_values(axes, [outcome.peak_bytes / MIB for outcome in outcomes], "{:.1f}")
    axes.legend(loc="lower right", fontsize=9)
    return figure


def traffic(outcomes: Sequence[Outcome], predicted_bytes: int) -> Figure:
    """Bytes that a rank sends in a step, and what the formula says for averaging gradients."""
    figure = Figure(figsize=(9.6, height(len(outcomes))))
    axes = bars(figure.subplots(), names_of(outcomes), "Sent by a rank in one step", "MiB")
    sizes = [outcome.sent_bytes / MIB for outcome in outcomes]
    axes.barh(range(len(outcomes)), sizes, color="#228833", height=0.62)
    axes.axvline(predicted_bytes / MIB, color=INK, linewidth=1, linestyle=":")
    axes.annotate(
        "2 (N−1)/N × gradient bytes", (predicted_bytes / MIB, -0.42), xytext=(-6, 0),
        textcoords="offset points", fontsize=9, ha="right", va="center",
    )  # fmt: skip
    write_values(axes, sizes, "{:.2f}")
    return figure


def speed(outcomes: Sequence[Outcome]) -> Figure:
    """Tokens per second of all ranks together."""
    figure = Figure(figsize=(9.6, height(len(outcomes))))
    axes = bars(figure.subplots(), names_of(outcomes), "Speed of all ranks together", "tokens per second")
    values = [outcome.tokens_per_second for outcome in outcomes]
    axes.barh(range(len(outcomes)), values, color="#4477AA", height=0.62)
    write_values(axes, values, "{:,.0f}")
    return figure


def ladder(rungs: Sequence[Rung]) -> Figure:
    """Step time and peak memory of the rungs of the ladder, side by side."""
    figure = Figure(figsize=(9.6, height(len(rungs))))
    left, right = figure.subplots(1, 2, sharey=True)
    names = [rung.name for rung in rungs]
    seconds = [1000 * rung.seconds for rung in rungs]
    sizes = [rung.peak_bytes / MIB for rung in rungs]
    for axes, values, title, unit, colour in (
        (left, seconds, "Step time", "ms", "#4477AA"),
        (right, sizes, "Peak memory", "MiB of live tensors", "#66CCEE"),
    ):
        bars(axes, names, title, unit).barh(range(len(rungs)), values, color=colour, height=0.62)
        write_values(axes, values, "{:,.0f}")
    return figure
