"""Lesson 2.4: measure, compare, choose.

Data parallelism, ZeRO-1, 2 and 3, and FSDP train the same model to the same weights. What tells them apart are two
numbers per rank: the bytes it holds, and the bytes it sends in a step. Both follow from arithmetic, and whether an
implementation keeps to it can be measured to the byte. Time follows from arithmetic only roughly, so it is measured as
well. Then a choice is no matter of taste any more: the fastest strategy that fits, and the simplest among equals.

Work from top to bottom: what to expect, what is there, what more ranks brought, which strategy to take. At the end of
the file stands what is given: `ModelBytes`, `Gpu`, `Observation`, `Measurement`, `ScalingRow`, `Choice`, `zero_stage`,
`share`, `advice`, `in_units` and `in_ms`.

A strategy to measure is a function without arguments that sets everything up on this rank and returns its training
step, a `Step`. `strategies_data_parallel_workshop.py`, beside this file, has yours of this day and those of torch and
DeepSpeed.

Units: bytes and seconds are plain numbers. Memory is shown in GiB or MiB (2**30 or 2**20 bytes), links in GB/s (10**9).

Sources:
    Rajbhandari et al. 2020, "ZeRO: memory optimizations toward training trillion parameter models", arXiv:1910.02054,
        sections 5 (memory) and 7 (traffic).
    Zhao et al. 2023, "PyTorch FSDP: experiences on scaling fully sharded data parallel", arXiv:2304.11277.
    Gustafson 1988, "Reevaluating Amdahl's law", Communications of the ACM 31 (5): strong and weak scaling.
"""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch.distributed as dist
from torch import Tensor

from shardlab import NotAttempted
from shardlab.observe import PeakMemory, StepClock, Traffic, free_messages
from shardlab.ranks import device

STRATEGIES = ("single GPU", "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
"""Simplest first. "single GPU": one rank, and the others are left out. FSDP is "ZeRO-3": the arithmetic is the same."""

Step = Callable[[Tensor], Tensor]
"""One training step on a rank: takes the whole global batch, the same on every rank; does forward, backward and update
with this rank's rows; returns their mean loss."""

WARM_UP = 2  # steps before anything is observed: optimisers make their states, torch's DDP rearranges its buckets


# --- What to expect ---------------------------------------------------------------------------------------------------


def expected_memory(strategy: str, model_bytes: ModelBytes, ranks: int) -> int:
    """Bytes that a rank holds at the fullest moment of a step (Rajbhandari et al. 2020, section 5).

    - Parameters, gradients and optimiser states: whole, or this rank's `share`.
    - Activations: they belong to this rank's rows and are nobody else's.
    - What is whole for a moment although it is sharded: gradients of two layers, one fills up while the other is
      reduced; and in ZeRO-3 the parameters of two layers, one computes while the next is fetched.

    Args:
        strategy: one of `STRATEGIES`.
        model_bytes: what an unsharded model takes.
        ranks: N, at least 1.

    Raises:
        ValueError: another strategy, or ``ranks`` < 1.

    Example, parameters 100, gradients 100, optimizer 200, activations 10, layer 5, on 4 ranks: DDP 410, ZeRO-1 260,
    ZeRO-2 195, ZeRO-3 130.

    Hints:
        1. `zero_stage` numbers the strategies. For each of the three parts: from which stage on is it split?
        2. Gradients may have another dtype than parameters. What do those of one layer take, if the layer is ``layer``
           of ``parameters``?
    """
    raise NotAttempted("2.4 expected_memory")


def expected_traffic(strategy: str, model_bytes: ModelBytes, ranks: int) -> int:
    """Bytes that a rank sends in a step (Rajbhandari et al. 2020, section 7).

    Everything goes round in a ring: a reduce-scatter or an all-gather of S bytes makes each rank send (N-1)/N S.

    - DDP: an all-reduce of the gradients is both, one after the other.
    - ZeRO-1 and 2: reduce-scatter gradients, all-gather the updated parameters.
    - ZeRO-3: all-gather parameters for forward and once more for backward, reduce-scatter gradients.

    With parameters and gradients of one dtype, Psi bytes each, that is 2, 2 and 3 Psi (N-1)/N.

    Args, raises: as `expected_memory`.

    Returns:
        Rounded down to a whole byte.

    Example, parameters 100, gradients 200 (fp32, where parameters are bf16), 4 ranks: DDP 300, ZeRO-1 225, ZeRO-3 300.

    Hints:
        1. Count journeys of the gradients and journeys of the parameters.
        2. Integers to the end: ``total * (ranks - 1) // ranks``.
    """
    raise NotAttempted("2.4 expected_traffic")


def expected_speedup(strategy: str, model_bytes: ModelBytes, gpu: Gpu, ranks: int, bandwidth: float) -> float:
    """How many times as many tokens per second N ranks train, compared to a single GPU: the best case.

    Each rank works on as many rows as the single GPU does (weak scaling), and messages hide behind the computation as
    long as they take less time. So a step takes what takes longer: the computation, or the messages on the link.

    Args:
        gpu: its ``step_seconds`` are those of the computation.
        bandwidth: of the link by which a rank sends, in bytes/s, > 0.

    Returns:
        1 for a single GPU; else ``ranks`` at most, and less than 1 if the link is slow enough.

    Raises:
        ValueError: as `expected_memory`; ``bandwidth`` is not positive.

    Example: 4 ranks, 1 s of computation, 2 GB to send. At 2 GB/s or more the speed-up is 4, at 1 GB/s it is 2, at 0.25
    GB/s it is 0.5: a single GPU would be done sooner.

    Hints:
        1. ``max``, and of what? Divide so that the best case is exactly ``ranks``: `recommend` compares.
    """
    raise NotAttempted("2.4 expected_speedup")


# --- What is there ----------------------------------------------------------------------------------------------------


def observe_step(build: Callable[[], Step], batch: Tensor) -> tuple[Step, Observation]:
    """Set a strategy up on this rank, and count what one step of it holds and sends.

    The peak is that of one step after `WARM_UP` steps. Setting up may need more for a moment, if a model is whole
    before it is sharded, and the first steps need less, while states are still missing. Yet everything that was made
    before and is still alive counts: it takes up room during the step.

    Args:
        build: sets up and returns the step.
        batch: the global batch.

    Returns:
        The step, to go on with, and what this rank observed.

    Hints:
        1. `PeakMemory` knows only tensors that it has seen: where must it begin? What does `reset_peak` do?
        2. `Traffic` around the one step. ``sent_bytes`` is by the ring, whatever the backend does.
        3. ``loss.item()`` waits for a GPU, a loss that is kept keeps its graph: ``detach`` now, ``item`` at the end.
    """
    raise NotAttempted("2.4 observe_step")


def time_steps(step: Step, batch: Tensor, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of ``steps`` steps as they are, and of as many for which communication costs nothing.

    How much of a step is communication? Adding up the time of all messages would count those that hide behind
    computation. What matters is what a perfect network would save, so let there be one: inside `free_messages` every
    collective is over at once, and the rest of the step is the same. The two take turns, because other things happen on
    the machine, and both should meet them; and all ranks begin each step together.

    After a step with free messages parameters are worth nothing: do not ask for the loss.

    Hints:
        1. `StepClock`, one for each kind, ``warmup=0``: it waits for a GPU. ``all_seconds`` has every step's.
        2. `dist.barrier`, outside the clock.
    """
    raise NotAttempted("2.4 time_steps")


def measure_strategy(build: Callable[[], Step], batch: Tensor, steps: int) -> Measurement:
    """Measure a strategy on all ranks of the default group: `observe_step`, then `time_steps`. Call it on every rank.

    Memory and traffic are those of the rank that holds most and of the one that sends most. A step is over when the
    slowest rank is done with it: of each step the longest time over the ranks counts, and of these times the median.
    The communication share is the part of a step that free messages save: 1 - free / real for each pair that took
    turns, of that the median, and 0 where the noise says less.

    Args:
        build: sets up on this rank and returns the step.
        batch: the global batch, [rows, tokens per row], the same on every rank.
        steps: how many steps to time of each kind, at least 1.

    Returns:
        The same on every rank.

    Raises:
        ValueError: ``steps`` < 1, or ranks that do not divide the rows; before any communication.

    Hints:
        1. ``dist.all_gather_object`` brings everybody's numbers to everybody.
        2. ``zip(*times)`` turns times by rank into times by step.
    """
    raise NotAttempted("2.4 measure_strategy")


# --- What did more ranks bring? ---------------------------------------------------------------------------------------


def scaling_table(measurements: Sequence[Measurement]) -> list[ScalingRow]:
    """Speed-up and efficiency of one strategy at several numbers of ranks, against the smallest of them.

    - *Strong* scaling: the batch stays, and ranks share it. *Weak* scaling: each rank brings rows of its own, and the
      batch grows with the ranks. The measurements say themselves which it was.
    - Speed-up: tokens/s over tokens/s at the smallest number of ranks. In strong scaling that is old time over new.
    - Efficiency: speed-up over what so many times the ranks could bring at best. Measured from 2 ranks on, 8 ranks can
      bring 4.

    Args:
        measurements: of one strategy, in any order; a single one counts as strong.

    Returns:
        A row for each, fewest ranks first.

    Raises:
        ValueError: no measurement, a number of ranks twice, or neither strong nor weak.

    Example, 100, 190 and 320 tokens/s at 1, 2 and 4 ranks: speed-ups 1, 1.9 and 3.2, efficiencies 1, 0.95 and 0.8.
    """
    raise NotAttempted("2.4 scaling_table")


# --- Which strategy to take? ------------------------------------------------------------------------------------------


def fewest_ranks(model_bytes: ModelBytes, gpu: Gpu) -> int | None:
    """The smallest number of ranks on which the model fits with ZeRO-3; None if it fits on no number of them.

    Shards shrink with more ranks. Activations and the layers at work do not.

    Example, the model of `expected_memory` on a GPU of 130 bytes: 4. On one of 30 bytes: None, for 10 + 20 bytes stay
    on every rank, however many share the rest.

    Hints:
        1. More ranks never need more memory, and from some number on nothing shrinks any more: shards of one byte.
        2. It may be billions: do not count up to it. ``bisect.bisect_left`` takes a ``range`` and a ``key``.
    """
    raise NotAttempted("2.4 fewest_ranks")


def recommend(model_bytes: ModelBytes, gpu: Gpu, ranks: int, bandwidth: float) -> Choice:
    """The strategy to train this model with, and why, in sentences for a person.

    Of the strategies that fit, `expected_memory` at most ``gpu.memory_bytes``, the one with the highest
    `expected_speedup`, and of equals the first in `STRATEGIES`: nobody should shard what need not be sharded.

    Args:
        model_bytes: what the model takes, with the activations of one rank's rows.
        gpu: each rank's.
        ranks: N, at least 1.
        bandwidth: of the link by which a rank sends, in bytes/s, > 0.

    Returns:
        The strategy, and a reason in which stands

        - of every strategy that does not fit: its name, what it needs and what there is (`in_units`);
        - of the choice: its name, what it needs and what there is; what a step sends (`in_units`); how long it computes
          and how long it sends (`in_ms`); the speed-up with one decimal, such as "3.2x";
        - if it is a single GPU though there are more ranks: the fastest of the others and its speed-up.

        Where nothing fits, the strategy is "does not fit", and the reason has the needs of all and what would help:
        the `fewest_ranks` for ZeRO-3, or, if there is "no number of ranks", the bytes that stay on each.

    Raises:
        ValueError: ``ranks`` < 1 or ``bandwidth`` not positive.

    Example, 7 billion parameters with Adam in mixed precision (2 + 2 + 12 bytes each), 8 GPUs of 80 GiB that compute
    for 500 ms, links of 50 GB/s: "ZeRO-1". The reason begins "single GPU needs 104.3 GiB, H100 has 80.0 GiB. DDP needs
    104.3 GiB, H100 has 80.0 GiB. ZeRO-1 needs 35.9 GiB of 80.0 GiB." and goes on with 22.8 GiB in 490.0 ms, and 8.0x.

    Hints:
        1. ``max`` with a ``key`` returns the first of equals.
        2. `advice` is given: what would help where nothing fits.
    """
    raise NotAttempted("2.4 recommend")


# --- Given ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelBytes:
    """What an unsharded model takes in training, in bytes.

    Attributes:
        parameters: in the dtype in which they compute and travel, at least 1.
        gradients: in theirs.
        optimizer: states, and the fp32 copy of the parameters in mixed precision.
        activations: what forward keeps for backward, of one rank's rows.
        layer: parameters of the largest layer, or of a bucket, whatever travels as one message.
    """

    parameters: int
    gradients: int
    optimizer: int
    activations: int = 0
    layer: int = 0

    def __post_init__(self) -> None:
        if self.parameters < 1 or min(self.gradients, self.optimizer, self.activations, self.layer) < 0:
            raise ValueError(f"need 1 byte of parameters or more, and nothing negative: got {self}")


@dataclass(frozen=True)
class Gpu:
    """What a rank has.

    Attributes:
        name: for sentences.
        memory_bytes: that training may use, after CUDA and NCCL have had theirs.
        step_seconds: that it takes to compute a step of this model on one rank's rows: measured on one rank, or
            FLOPs over the FLOP/s that it reaches.
    """

    name: str
    memory_bytes: int
    step_seconds: float

    def __post_init__(self) -> None:
        if not (self.memory_bytes > 0 and self.step_seconds > 0):
            raise ValueError(f"need memory and seconds above 0: got {self}")


@dataclass(frozen=True)
class Observation:
    """What one rank counted.

    Attributes:
        losses: of its rows, one for each step so far, in nats.
        peak_bytes: of live tensors, in one step.
        sent_bytes: in one step.
    """

    losses: list[float]
    peak_bytes: int
    sent_bytes: int


@dataclass(frozen=True)
class Measurement:
    """A strategy, measured.

    Attributes:
        ranks: N.
        tokens: in a step, of all ranks together.
        losses: of the whole batch in the first `WARM_UP` + 1 steps: equal for all strategies that are right.
        tokens_per_second: of all ranks together.
        peak_bytes: of live tensors in a step, on the rank that holds most.
        traffic: bytes sent in a step, by the rank that sends most.
        communication_share: of a step's time, what free messages would save, 0 to 1.
    """

    ranks: int
    tokens: int
    losses: list[float]
    tokens_per_second: float
    peak_bytes: int
    traffic: int
    communication_share: float


@dataclass(frozen=True)
class ScalingRow:
    """One number of ranks in a `scaling_table`; ``kind`` is "strong" or "weak"."""

    kind: str
    ranks: int
    tokens_per_second: float
    speedup: float
    efficiency: float


@dataclass(frozen=True)
class Choice:
    """A strategy's name, and the reason for it in sentences."""

    strategy: str
    reason: str


def zero_stage(strategy: str, ranks: int) -> int:
    """0 for a single GPU and DDP, else the number in the name; refuses what is no strategy, and fewer ranks than 1."""
    if strategy not in STRATEGIES:
        raise ValueError(f"unknown strategy {strategy!r}: choose one of {', '.join(STRATEGIES)}")
    if ranks < 1:
        raise ValueError(f"ranks must be at least 1: got {ranks}")
    return int(strategy[-1]) if strategy.startswith("ZeRO") else 0


def share(total: int, ranks: int) -> int:
    """What the fullest of ``ranks`` ranks holds of ``total``: the quotient rounded up. ``share(10, 4) == 3``."""
    return -(-total // ranks)


def advice(model_bytes: ModelBytes, gpu: Gpu) -> str:
    """What would help where nothing fits, in a sentence."""
    enough = fewest_ranks(model_bytes, gpu)
    if enough:
        return f"ZeRO-3 fits on {enough:,} ranks."
    stays = expected_memory("ZeRO-3", model_bytes, 1)
    stays -= model_bytes.parameters + model_bytes.gradients + model_bytes.optimizer
    return (
        f"It fits on no number of ranks: activations and the layers at work take {in_units(stays)} on each. Recompute "
        "activations, take fewer rows, or split the layers (day 3)."
    )


def in_units(num_bytes: float) -> str:
    """``in_units(3 * 2**29) == "1.5 GiB"``, and in MiB what is less than one GiB."""
    unit, size = ("GiB", 2**30) if num_bytes >= 2**30 else ("MiB", 2**20)
    return f"{num_bytes / size:,.1f} {unit}"


def in_ms(seconds: float) -> str:
    """``in_ms(0.0125) == "12.5 ms"``."""
    return f"{1e3 * seconds:,.1f} ms"
