"""What runs on each rank in the tests of 2.4, around the learner's measuring: strategies whose costs are known.

The strategies of one model, `stack`, are torch's DDP and `fully_shard`, and ZeRO-2 and 3 by hand, with backward written
out, so that no lesson of the learner's is in the way. The others are planted: they hold, send and wait for as much as
they are told. Everything in here gives back plain data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from shardlab.observe import modelled_link
from shardlab.ranks import all_gather_single, device, reduce_scatter_single

WIDTH, LAYERS = 60, 24  # 1, 2, 3 and 4 divide the width
LAYER_BYTES = 4 * WIDTH * WIDTH
MODEL_BYTES = LAYERS * LAYER_BYTES
ROWS = 12


# --- One model, four strategies ---------------------------------------------------------------------------------------


def weights() -> list[Tensor]:
    """Of the layers, the same on every rank: [WIDTH, WIDTH] each."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(WIDTH, WIDTH, generator=generator) / WIDTH**0.5).to(device()) for _ in range(LAYERS)]


def stack() -> nn.Sequential:
    """Linear layers one after the other."""
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False, device=device()) for _ in range(LAYERS)))
    with torch.no_grad():
        for layer, weight in zip(layers, weights(), strict=True):
            layer.weight.copy_(weight)
    return layers


def my_rows(batch: Tensor) -> Tensor:
    return batch.chunk(dist.get_world_size())[dist.get_rank()]


def step_of(model: nn.Module) -> Callable[[Tensor], Tensor]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(batch: Tensor) -> Tensor:
        loss = model(my_rows(batch)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def ddp() -> Callable[[Tensor], Tensor]:
    return step_of(DistributedDataParallel(stack(), gradient_as_bucket_view=True))


def fsdp2() -> Callable[[Tensor], Tensor]:
    from torch.distributed.fsdp import fully_shard  # here: it takes longer to import than most tests take

    model = stack()
    for layer in model:
        fully_shard(layer)
    return step_of(fully_shard(model))


def zero_by_hand(stage: int) -> Callable[[Tensor], Tensor]:
    """ZeRO-2 or ZeRO-3, a message for each layer, with momentum and a mean of squares as an optimiser's two states.

    While a layer computes the next one is fetched; while a gradient is reduced the next one is computed.
    """
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = weights()
    shards = [weight.chunk(ranks)[rank] for weight in whole]  # in stage 2 a part of the whole
    if stage == 3:
        whole, shards = [], [shard.clone() for shard in shards]
    states = [torch.zeros(2, *shard.shape, device=device()) for shard in shards]

    def start_fetch(layer: int) -> tuple[Tensor, dist.Work | None]:
        if stage == 2:
            return whole[layer], None
        full = torch.empty(WIDTH, WIDTH, device=device())
        return full, all_gather_single(full, shards[layer], async_op=True)

    def whole_weights(order: Sequence[int]) -> Iterator[tuple[int, Tensor]]:
        coming = start_fetch(order[0])
        for place, layer in enumerate(order):
            weight, work = coming
            if work:
                work.wait()
            coming = start_fetch(order[place + 1]) if place + 1 < LAYERS else None
            yield layer, weight
            del weight

    @torch.no_grad()
    def step(batch: Tensor) -> Tensor:
        inputs, gradients, going = [my_rows(batch)], [torch.empty_like(shard) for shard in shards], None
        for _, weight in whole_weights(range(LAYERS)):
            inputs.append(inputs[-1] @ weight.T)
        out = inputs.pop()
        loss = out.square().mean()
        upstream = 2 * out / out.numel()
        for layer, weight in whole_weights(range(LAYERS)[::-1]):
            gradient = (upstream.T @ inputs.pop()).div_(ranks)
            if going:
                going[0].wait()
            going = reduce_scatter_single(gradients[layer], gradient, async_op=True), gradient
            upstream = upstream @ weight
        going[0].wait()
        for shard, gradient, (momentum, squares) in zip(shards, gradients, states, strict=True):
            momentum.lerp_(gradient, 0.1)
            squares.lerp_(gradient.square(), 0.1)
            shard.addcdiv_(momentum, squares.sqrt().add_(1e-5), value=-1e-3)
        for full, shard in zip(whole, shards, strict=False):
            all_gather_single(full, shard)
        return loss

    return step


STRATEGIES: dict[str, Callable[[], Callable[[Tensor], Tensor]]] = {
    "DDP": ddp,
    "ZeRO-2": lambda: zero_by_hand(2),
    "ZeRO-3": lambda: zero_by_hand(3),
    "FSDP2": fsdp2,
}


def a_batch(rows: int = ROWS) -> Tensor:
    return torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(2)).to(device())


def observe_all(lab: ModuleType) -> dict[str, Any]:
    """What the learner's `observe_step` sees of each strategy."""
    return {name: lab.observe_step(build, a_batch())[1] for name, build in STRATEGIES.items()}


def measure_all(lab: ModuleType) -> dict[str, Any]:
    """What the learner's `measure_strategy` comes to for each strategy."""
    return {name: lab.measure_strategy(build, a_batch(), 1) for name, build in STRATEGIES.items()}


# --- Planted strategies -----------------------------------------------------------------------------------------------


def planted(
    kept: int = 0,
    set_up: int = 0,
    temporary: int = 0,
    sent: Sequence[int] = (0,),
    losses: Sequence[float] = (0.0,),
    counter: list[int] | None = None,
) -> Callable[[], Callable[[Tensor], Tensor]]:
    """A strategy without a model.

    Args:
        kept: float32 elements that it makes when it is built, and never touches again.
        set_up: elements it needs for a moment when it is built.
        temporary: elements it needs for a moment in each step.
        sent: elements that it all-reduces, step by step; the last one also in all later steps.
        losses: of the steps, likewise.
        counter: gets one more for each step.
    """
    steps = counter if counter is not None else []

    def build() -> Callable[[Tensor], Tensor]:
        alive = torch.ones(kept, device=device())
        torch.ones(set_up, device=device())
        message = torch.ones(max(*sent, 1), device=device())

        def step(batch: Tensor) -> Tensor:
            number = len(steps)
            steps.append(number)
            torch.ones(temporary, device=device())
            if elements := sent[min(number, len(sent) - 1)]:
                dist.all_reduce(message[:elements])
            assert alive.numel() == kept
            return torch.tensor(losses[min(number, len(losses) - 1)], device=device())

        return step

    return build


def observe_planted(lab: ModuleType, options: dict[str, Any]) -> tuple[Any, int]:
    """What the learner's `observe_step` sees of a planted strategy, and the steps it took."""
    counter: list[int] = []
    _, observation = lab.observe_step(planted(**options, counter=counter), torch.zeros(4, 4))
    return observation, len(counter)


def measure_planted(lab: ModuleType, options: dict[str, Any]) -> Any:
    """The learner's measurement of a strategy planted with this rank's options."""
    return lab.measure_strategy(planted(**options), torch.zeros(12, 5), 1)


# --- Time -------------------------------------------------------------------------------------------------------------


def time_and_listen(lab: ModuleType, steps: int) -> tuple[list[float], list[float], list[float]]:
    """Seconds by the learner's `time_steps`, and for each step what an all-reduce of ones came to in it."""
    heard: list[float] = []

    def step(batch: Tensor) -> Tensor:
        one = torch.ones((), device=device())
        dist.all_reduce(one)
        heard.append(one.item())
        time.sleep(0.01)
        return one

    real, free = lab.time_steps(step, torch.zeros(4, 4), steps)
    return real, free, heard


def time_with_a_late_rank(lab: ModuleType, seconds: float) -> tuple[list[float], list[float]]:
    """`time_steps` of a step in which rank 1 is busy on its own after the message."""

    def step(batch: Tensor) -> Tensor:
        one = torch.ones((), device=device())
        dist.all_reduce(one)
        if dist.get_rank() == 1:
            time.sleep(seconds)
        return one

    real, free = lab.time_steps(step, torch.zeros(4, 4), 3)
    return real, free


def measure_over_a_link(lab: ModuleType, computing: float, sending: float, overlap: bool) -> Any:
    """Measure a step that sleeps in place of computing, over a link on which its message takes ``sending`` seconds."""
    ranks = dist.get_world_size()
    message = torch.ones(250_000, device=device())
    bandwidth = 2 * (ranks - 1) / ranks * message.nbytes / sending

    def step(batch: Tensor) -> Tensor:
        handle = dist.all_reduce(message, async_op=True)
        if not overlap:
            handle.wait()
        time.sleep(computing)
        handle.wait()
        return torch.zeros(())

    with modelled_link(bandwidth):
        return lab.measure_strategy(lambda: step, torch.zeros(4, 5), 3)


def measure_given_times(lab: ModuleType, given: tuple[list[float], list[float], int]) -> Any:
    """What the learner's `measure_strategy` makes of these times of this rank, in place of those of a clock, and of so
    many bytes sent, in place of those observed."""
    *times, sent = given  # this rank is a process of its own: nobody else sees what is put in here
    lab.time_steps = lambda step, batch, steps: tuple(times)
    lab.observe_step = lambda build, batch: (build(), lab.Observation([1.0, 1.0, 1.0], 100, sent))
    return lab.measure_strategy(planted(), torch.zeros(12, 5), len(times[0]))


def refused_measurements(lab: ModuleType, calls: Sequence[tuple[list[int], int]]) -> list[str]:
    """The error of each call, of a batch of this shape and so many steps; "" if there is none."""
    return [
        error_of(lambda shape=shape, steps=steps: lab.measure_strategy(planted(), torch.zeros(shape), steps))
        for shape, steps in calls
    ]


def error_of(call: Callable[[], Any]) -> str:
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# --- Arithmetic -------------------------------------------------------------------------------------------------------


def evaluate(lab: ModuleType, name: str, calls: Sequence[tuple]) -> list[Any]:
    """The lab's function for each tuple of arguments; an error as "ValueError: ...".

    Arguments ("ModelBytes", ...) and ("Gpu", ...) are made into the lab's classes, and so are those in lists.
    """
    results = []
    for arguments in calls:
        given = [made(lab, argument) for argument in arguments]
        try:
            results.append(getattr(lab, name)(*given))
        except ValueError as error:
            results.append(f"ValueError: {error}")
        assert given == [made(lab, argument) for argument in arguments], (
            f"{name} has changed its arguments: {arguments}"
        )
    return results


def made(lab: ModuleType, argument: Any) -> Any:
    if isinstance(argument, list):
        return [made(lab, each) for each in argument]
    if isinstance(argument, tuple) and argument and argument[0] in ("ModelBytes", "Gpu", "Measurement"):
        return getattr(lab, argument[0])(*argument[1:])
    return argument
