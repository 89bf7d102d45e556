"""Given: a pipeline whose stages take as long as one likes, run for real and timed. For the script and notebook of 3.2.

A laptop has fewer cores than a pipeline has ranks, and ranks that share a core are no pipeline. So these stages *wait*
for their time instead of computing, as a rank waits for its GPU. All else is real: processes, messages, autograd, and
the schedule.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import ProcessGroup

from labs.day3_model_parallel.pipeline import MicroBatch, PipelineStage, Schedule, Span, Timeline, run_schedule
from shardlab.ranks import device

WIDTH = 64  # of the activations: small, so that a message takes next to no time


class Wait(torch.autograd.Function):
    """The identity, `forward` seconds on the way there and `backward` seconds on the way back."""

    @staticmethod
    def forward(ctx, x: Tensor, forward: float, backward: float) -> Tensor:
        ctx.seconds = backward
        time.sleep(forward)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(ctx.seconds)
        return gradient, None, None


class WaitingStage(nn.Module):
    """A stage with one parameter, whose forward and backward take the given seconds."""

    def __init__(self, forward: float, backward: float) -> None:
        super().__init__()
        self.seconds = forward, backward
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        return Wait.apply(x * self.scale, *self.seconds)


def measure(
    schedule: Schedule, forward_ms: list[float], backward_ms: list[float], group: ProcessGroup | None = None
) -> Timeline:
    """Run a schedule on this group's ranks, once to warm up and once for the record.

    Args:
        forward_ms, backward_ms: of each stage of the schedule, for one micro-batch.

    Returns:
        What all ranks did, in milliseconds from the first start; the same on every rank. The clocks of ranks on one
        machine agree; on several they do not.
    """
    rank = dist.get_rank(group)
    chunks = {
        stage: WaitingStage(forward_ms[stage] / 1e3, backward_ms[stage] / 1e3).to(device())
        for stage, holder in enumerate(schedule.placement)
        if holder == rank
    }
    stage = PipelineStage(chunks, torch.empty_like, group)
    x = torch.ones(2, WIDTH, device=device())
    batch = [MicroBatch(x, x, 1 / schedule.micro_batches)] * schedule.micro_batches
    for _ in range(2):
        dist.barrier(group)
        run_schedule(stage, schedule, batch, lambda y, target: (y - target).square().mean())
    spans: list[list[Span]] = [[] for _ in range(schedule.ranks)]
    dist.all_gather_object(spans, stage.spans, group=group)
    zero = min(span.start for own in spans for span in own)
    return Timeline(
        tuple(tuple(Span(action, 1e3 * (a - zero), 1e3 * (b - zero)) for action, a, b in own) for own in spans)
    )
