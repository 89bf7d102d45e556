"""`StepClock`: how long steps take."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class StepClock:
    """Times training steps.

        clock = StepClock(tokens_per_step=batch * sequence)
        for batch in batches:
            with clock.step():
                train(batch)
        clock.tokens_per_second

    Args:
        tokens_per_step: tokens (or images) each step trains on.
        warmup: first steps that are timed but not counted: they allocate and compile.
        device: a CUDA device is waited for at both ends of a step, since its work is queued.

    Attributes:
        all_seconds: of every step, warm-up included.
    """

    def __init__(self, tokens_per_step: int, warmup: int = 1, device: torch.device | None = None) -> None:
        if tokens_per_step < 1 or warmup < 0:
            raise ValueError(f"tokens_per_step {tokens_per_step} must be >= 1 and warmup {warmup} >= 0")
        self.tokens_per_step = tokens_per_step
        self.warmup = warmup
        self.all_seconds: list[float] = []
        self._device = device if device is not None and device.type == "cuda" else None

    @contextmanager
    def step(self) -> Iterator[None]:
        """Time what is done inside as one step."""
        self._synchronize()
        start = time.perf_counter()
        yield
        self._synchronize()
        self.all_seconds.append(time.perf_counter() - start)

    @property
    def seconds(self) -> float:
        """Median of the steps after warm-up: one step that met a busy machine does not change it.

        Raises:
            ValueError: there is no step after the warm-up yet.
        """
        counted = self.all_seconds[self.warmup :]
        if not counted:
            raise ValueError(f"{len(self.all_seconds)} steps timed, {self.warmup} of them warm-up: time more steps")
        return statistics.median(counted)

    @property
    def tokens_per_second(self) -> float:
        return self.tokens_per_step / self.seconds

    def _synchronize(self) -> None:
        if self._device is not None:
            torch.cuda.synchronize(self._device)
