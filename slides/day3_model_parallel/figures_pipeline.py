"""The pictures of 2_pipeline.md. From the root of the checkout:

    python -m slides.day3_model_parallel.figures_pipeline

All numbers in them are computed here, with the reference solution. Timelines of one slide have one scale.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from shardlab import show
from shardlab.models import TransformerConfig
from solutions.day3_model_parallel.pipeline import (
    Schedule,
    Timeline,
    balance_stages,
    gpipe,
    interleaved,
    one_forward_one_backward,
    run_order,
    simulate,
    transformer_costs,
)

HERE = Path(__file__).parent / "figures"
FORWARD, BACKWARD = 1.0, 2.0  # of a quarter of the model; a backward costs about twice its forward


def timelines(name: str, *titled: tuple[str, Timeline], height: float = 1.75) -> None:
    """Timelines below each other, on one scale; numbers are micro-batches."""
    figure, rows = plt.subplots(len(titled), 1, figsize=(11, height * len(titled) + 0.5), sharex=True, squeeze=False)
    end = max(timeline.makespan for _, timeline in titled)
    for (title, timeline), (axes,) in zip(titled, rows, strict=True):
        lanes(axes, timeline)
        axes.set(title=title, xlim=(0, end * 1.01))
    rows[-1][0].set_xlabel("time, in forwards of a quarter of the model")
    show.save_figure(figure, HERE / f"{name}.svg")
    plt.close(figure)


def lanes(axes: Axes, timeline: Timeline) -> None:
    ranks = len(timeline.spans)
    stages = 1 + max(span.action.stage for spans in timeline.spans for span in spans)
    for rank, spans in enumerate(timeline.spans):
        for action, start, end in spans:
            colour = show.CATEGORY_COLOURS["forward" if action.kind == "F" else "backward"]
            pale = action.stage >= ranks  # a rank's second chunk
            axes.barh(rank, end - start, left=start, height=0.84, color=colour, alpha=0.6 if pale else 1, edgecolor="w")
            if (end - start) / timeline.makespan > 0.012:
                axes.text((start + end) / 2, rank, action.micro_batch, ha="center", va="center", color="w", fontsize=9)
    axes.set_yticks(range(ranks), labels=[f"rank {rank}" for rank in range(ranks)])
    axes.invert_yaxis()
    axes.grid(visible=False)
    assert stages <= 2 * ranks, "paler than pale is not drawn"


def play(schedule: Schedule) -> Timeline:
    """Equal stages: `FORWARD` and `BACKWARD` for each rank's share of the model, whatever number of stages that is."""
    share = schedule.ranks / schedule.stages
    return simulate(schedule, FORWARD * share, BACKWARD * share)


def bubbles() -> None:
    """Bubble against micro-batches, 8 ranks."""
    ranks, counts = 8, (8, 16, 32, 64, 128)
    figure, axes = plt.subplots(figsize=(9, 3.8))
    axes.plot(
        counts, [play(one_forward_one_backward(ranks, m)).bubble for m in counts], marker="o", label="GPipe, 1F1B"
    )
    for chunks in (2, 4):
        values = [play(interleaved(ranks, m, chunks)).bubble for m in counts]
        axes.plot(counts, values, marker="o", label=f"interleaved, {chunks} chunks")
    axes.set(title="8 ranks, equal stages", xlabel="micro-batches", ylabel="bubble", xscale="log", ylim=(0, None))
    axes.set_xticks(counts, labels=counts)
    axes.minorticks_off()
    axes.legend()
    show.save_figure(figure, HERE / "pipeline_bubbles.svg")
    plt.close(figure)


def in_flight() -> None:
    """Micro-batches held on each of 8 ranks, 32 in all, in units of a rank's share of the layers."""
    ranks, micro_batches, width = 8, 32, 0.27
    figure, axes = plt.subplots(figsize=(9, 3.8))
    for number, (name, schedule) in enumerate(
        {
            "GPipe": gpipe(ranks, micro_batches),
            "interleaved, 2 chunks": interleaved(ranks, micro_batches, 2),
            "1F1B": one_forward_one_backward(ranks, micro_batches),
        }.items()
    ):
        chunks = schedule.stages // ranks
        held = [count / chunks for count in play(schedule).peak_in_flight]
        axes.bar([rank + (number - 1) * width for rank in range(ranks)], held, width, label=name)
    axes.set_xticks(range(ranks), labels=[f"rank {rank}" for rank in range(ranks)])
    axes.set(title="8 ranks, 32 micro-batches", ylabel="micro-batches' activations", ylim=(0, 42))
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper right", ncols=3)
    show.save_figure(figure, HERE / "pipeline_in_flight.svg")
    plt.close(figure)


LARGE = TransformerConfig(vocab=32000, hidden=1024, layers=14, heads=16, kv_heads=8, ffn=2816, sequence=1024)


def stage_costs(sizes: Sequence[int]) -> list[float]:
    """MFLOPs per token of each stage's forward."""
    costs = transformer_costs(LARGE)
    return [sum(costs[sum(sizes[:k]) : sum(sizes[: k + 1])]) / 1e6 for k in range(len(sizes))]


def balance() -> None:
    """Equal numbers of layers against balanced ones: costs, and what 1F1B with 16 micro-batches makes of them."""
    figure, axes = plt.subplots(figsize=(9, 3.6))
    ways = {"4, 4, 4, 4 layers": [4, 4, 4, 4], "balanced": balance_stages(transformer_costs(LARGE), 4)}
    for number, (name, sizes) in enumerate(ways.items()):
        costs = stage_costs(sizes)
        timeline = simulate(one_forward_one_backward(4, 16), costs, [2 * cost for cost in costs])
        label = name if name != "balanced" else f"balanced: {', '.join(map(str, sizes))}"
        places = [stage + (number - 0.5) * 0.38 for stage in range(4)]
        axes.bar(places, costs, 0.38, label=f"{label}, bubble {timeline.bubble:.3f}")
        for place, cost in zip(places, costs, strict=True):
            axes.text(place, cost + 2, f"{cost:.0f}", ha="center", fontsize=10)
    axes.set_xticks(range(4), labels=[f"stage {stage}" for stage in range(4)])
    axes.set(ylabel="MFLOPs per token", ylim=(0, 200), title="14 blocks and a head of 32,000 words on 4 ranks")
    axes.grid(axis="x", visible=False)
    axes.legend(loc="upper left")
    show.save_figure(figure, HERE / "pipeline_balance.svg")
    plt.close(figure)


def rounds() -> None:
    """1F1B on 3 ranks, 3 micro-batches, in rounds: who sends what to whom."""
    schedule = one_forward_one_backward(3, 3)
    timeline = simulate(schedule, 1, 1)
    spans = {span.action: span for own in timeline.spans for span in own}
    figure, axes = plt.subplots(figsize=(10, 3.6))
    lanes(axes, timeline)
    for action in run_order(schedule):
        consumer = schedule.consumer(action)
        if consumer is not None:
            start = (spans[action].end - 0.08, action.stage + 0.3 * (consumer.stage - action.stage))
            end = (spans[consumer].start + 0.08, consumer.stage - 0.3 * (consumer.stage - action.stage))
            axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": "#228833", "linewidth": 1.6})
    axes.set(xlabel="round", xlim=(0, timeline.makespan * 1.01))
    show.save_figure(figure, HERE / "pipeline_messages.svg")
    plt.close(figure)


def main() -> None:
    show.use_style()
    timelines("pipeline_alone", ("One batch, four stages", play(gpipe(4, 1))), height=2.4)
    timelines("pipeline_gpipe", ("GPipe, 8 micro-batches", play(gpipe(4, 8))), height=2.6)
    timelines("pipeline_1f1b", ("GPipe", play(gpipe(4, 8))), ("1F1B", play(one_forward_one_backward(4, 8))), height=1.9)
    timelines(
        "pipeline_interleaved",
        ("1F1B", play(one_forward_one_backward(4, 8))),
        ("interleaved, second chunk paler", play(interleaved(4, 8, 2))),
        height=1.9,
    )
    bubbles()
    in_flight()
    balance()
    rounds()
    large = {m: play(one_forward_one_backward(4, m)) for m in (4, 16)}
    print("bubbles of the deck:", {m: round(timeline.bubble, 4) for m, timeline in large.items()})


if __name__ == "__main__":
    main()
