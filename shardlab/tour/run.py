"""The tour from end to end."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console

from shardlab.grade.workspace import workspace
from shardlab.not_attempted import NotAttempted
from shardlab.observe import all_reduce_bytes
from shardlab.ranks import RankError, RankPool
from shardlab.show import table, write_results, write_text
from shardlab.syllabus import ROOT
from shardlab.tour.job import Job, Strategy
from shardlab.tour.ladder import Rung, climb, climbed, rung_names
from shardlab.tour.measure import prepare, train
from shardlab.tour.next_steps import next_steps
from shardlab.tour.outcome import MIB, Outcome, put_together, write_difference, yardsticks
from shardlab.tour.page import render
from shardlab.tour.progress import follow

STRATEGIES = "labs.tour_strategies"
LADDER = "labs.tour_ladder"
TOLERANCE = 1e-5
"""Largest relative difference between the losses of a strategy and of the yardstick, in any step. In float32 they come
to 1e-6, from adding the same numbers in another order; the smallest real mistake, gradients summed where they should
be averaged, to 1e-3."""
TIMEOUT_SECONDS = 600.0


def run_tour(job: Job | None = None, page: Path = Path("tour.html")) -> int:
    """Climb the ladder, train by every registered strategy, compare, print, write the page and results/tour.json.

    Ladder and strategies use the lessons of the reference submission; in a student edition, which has none, labs/.

    Args:
        job: what to train; None: about a minute on 2 cores.
        page: where the page goes.

    Returns:
        Exit code: 0 when all losses agree, 1 when one does not or a strategy failed.
    """
    job, console = job or Job(), Console(highlight=False)
    began = time.monotonic()
    solutions = ROOT / "solutions"
    with workspace(ROOT, solutions if solutions.is_dir() else ROOT / "labs") as place, RankPool(path=[place]) as pool:
        console.print("Preparing the text and its tokenizer ...")
        strategies = [Strategy(**asked) for asked in pool.run(prepare, 1, STRATEGIES, job, timeout=TIMEOUT_SECONDS)[0]]
        console.print(
            f"Training a GPT of {job.config.parameters:,} parameters for {job.steps} steps of {job.tokens_per_step:,} "
            f"tokens, {len(strategies)} times:"
        )
        try:
            outcomes = list(train_all(pool, strategies, job, console))
            rungs = climb_alone(pool, console)
        except RankError as error:
            console.print(f"A strategy failed.\n{error}", markup=False)
            return 1
    verdict, agree = judge(outcomes, rungs)
    predicted = all_reduce_bytes(4 * job.config.parameters, max(each.ranks for each in strategies))
    show_table(outcomes)
    if climbed(rungs):
        show_ladder(rungs)
    write_text(page, render(outcomes, rungs, job, TOLERANCE, predicted, verdict, agree))
    data = {"outcomes": [each.to_data() for each in outcomes], "ladder": [asdict(rung) for rung in rungs]}
    write_results("tour", {"job": asdict(job), "tolerance": TOLERANCE, **data})
    console.print(f"{verdict} ({time.monotonic() - began:.0f} s)\n", style="bold" if agree else "bold red")
    console.print(f"Pictures and what they mean: open {page} in a browser. Then:")
    for words, command in next_steps():
        console.print(f"  {words} [bold]{command}[/bold]")
    return 0 if agree else 1


def train_all(pool: RankPool, strategies: list[Strategy], job: Job, console: Console) -> Iterator[Outcome]:
    """Train by one strategy after the other; one whose lesson is not written yet is named and left out."""
    backend = None if torch.cuda.device_count() >= max(each.ranks for each in strategies) else "gloo"
    for strategy in strategies:
        began = time.monotonic()
        with tempfile.TemporaryDirectory() as folder, follow(Path(folder) / "steps", strategy.name, job.steps):
            arguments = (STRATEGIES, strategy, job, Path(folder) / "steps")
            try:
                ranks = pool.run(train, strategy.ranks, *arguments, timeout=TIMEOUT_SECONDS, backend=backend)
            except NotAttempted as missing:
                console.print(f"  {strategy.name:<24} left out: {missing}")
                continue
        outcome = put_together(strategy, job, ranks)
        seconds = time.monotonic() - began
        console.print(f"  {strategy.name:<24} loss {outcome.losses[-1]:.5f}   {seconds:.1f} s")
        yield outcome


def climb_alone(pool: RankPool, console: Console) -> list[Rung]:
    """Climb the ladder, on one rank."""
    console.print("One process alone, one change at a time:")
    [names] = pool.run(rung_names, 1, LADDER, timeout=TIMEOUT_SECONDS)
    with tempfile.TemporaryDirectory() as folder, follow(Path(folder) / "rungs", "ladder", len(names)):
        [rungs] = pool.run(climb, 1, LADDER, Path(folder) / "rungs", timeout=TIMEOUT_SECONDS)
    for rung in (rungs := [Rung(**rung) for rung in rungs]):
        if rung.skipped:
            console.print(f"  {rung.name:<24} left out: {rung.skipped}")
        else:
            console.print(f"  {rung.name:<24} loss {rung.loss:.5f}   {rung.faster_than(rungs[0]):.2f} times as fast")
    return rungs


def judge(outcomes: list[Outcome], rungs: list[Rung]) -> tuple[str, bool]:
    """In a sentence, whether every strategy has the losses of its yardstick, and every rung; and as a bool."""
    differences = {
        outcome.strategy: outcome.difference(of) for outcome, of in zip(outcomes, yardsticks(outcomes), strict=True)
    }
    if lost := [rung.name for rung in rungs if not rung.is_right]:
        return f"Not the losses of the first rung of the ladder: {', '.join(lost)}.", False
    for yardstick in dict.fromkeys(of.strategy.name for of in yardsticks(outcomes)):
        held = {each: far for each, far in differences.items() if (each.like or outcomes[0].strategy.name) == yardstick}
        if wrong := [each.name for each, far in held.items() if not far <= TOLERANCE]:
            return f"Not the losses of {yardstick} (more than {TOLERANCE:g} off): {', '.join(wrong)}.", False
    largest = max(differences.values())
    return f"All losses agree: largest relative difference {largest:.1e}, allowed {TOLERANCE:g}.", True


def show_table(outcomes: list[Outcome]) -> None:
    """The table on the terminal."""
    columns = ("strategy", "ranks", "loss (nats)", "furthest off", "tokens/s")
    columns += ("peak memory (MiB)", "sent per step (MiB)")
    rows = [
        (
            outcome.strategy.name,
            outcome.strategy.ranks,
            f"{outcome.losses[-1]:.5f}",
            write_difference(outcome.difference(yardstick)),
            round(outcome.tokens_per_second),
            outcome.peak_bytes / MIB,
            outcome.sent_bytes / MIB,
        )
        for outcome, yardstick in zip(outcomes, yardsticks(outcomes), strict=True)
    ]
    table("The same training, every way. Memory and traffic are those of one rank", columns, rows)


def show_ladder(rungs: list[Rung]) -> None:
    """The table of the ladder on the terminal."""
    columns = ("change", "loss (nats)", "times as fast", "peak memory (MiB)")
    rows = [
        (rung.name, f"{rung.loss:.5f}", f"{rung.faster_than(rungs[0]):.2f}", rung.peak_bytes / MIB)
        for rung in climbed(rungs)
    ]
    table("One process alone, one change at a time, each on top of the fastest so far", columns, rows)
