"""What a rank of the tour does: train by one strategy, and observe."""

import importlib
import os
from dataclasses import asdict
from pathlib import Path

import torch

from shardlab.observe import PeakMemory, StepClock, Traffic
from shardlab.ranks import device
from shardlab.tour.job import OBSERVED_STEP, Job, Step, Strategy, registered


def prepare(module: str, job: Job) -> list[dict]:
    """Fill the cache with what the job reads; then the strategies that a module registers, as plain data."""
    next(job.batches())
    return [asdict(each) for each in registered(importlib.import_module(module))]


def train(module: str, strategy: Strategy, job: Job, progress: Path) -> dict:
    """Train by one strategy on this rank.

    Args:
        module: where the strategy is registered.
        progress: a file that gets one byte per step, from rank 0.

    Returns:
        losses: one per step, this rank's (None where it has none); seconds: of a step, median; device: its type;
        sent_bytes: in one step; peak_bytes and peak_by_kind: of live tensors.
    """
    clock = StepClock(job.tokens_per_step, warmup=0, device=device())
    batches, losses = job.batches(), []
    observed = [next(batches) for _ in range(OBSERVED_STEP + 1)]  # now, so that the corpus is not in the memory counted

    def advance(step: Step, batch: torch.Tensor) -> None:
        loss = step(batch)
        losses.append(None if loss is None else loss.item())
        if os.environ["RANK"] == "0":
            with progress.open("ab") as file:
                file.write(b".")

    with PeakMemory() as memory:
        step = registered(importlib.import_module(module))[strategy](job)
        for batch in observed[:-1]:
            advance(step, batch)
        with Traffic() as traffic:
            advance(step, observed[-1])
    for _ in range(OBSERVED_STEP + 1, job.steps):
        with clock.step():
            advance(step, next(batches))
    return {
        "device": device().type,
        "losses": losses,
        "seconds": clock.seconds,
        "sent_bytes": traffic.sent_bytes(),
        "peak_bytes": memory.peak_bytes,
        "peak_by_kind": memory.peak_by_kind,
    }
