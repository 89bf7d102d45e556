"""The ladder of lesson 1.2: one training step, made faster one change at a time. Given code.

A `Recipe` says how a step is computed, a `Rung` changes one thing of it. `climb` trains the same model on the same text
with each rung in turn, from the same weights, and yields what it cost and the losses it reached. A rung that turns out
faster is kept, and the next one builds on it; one that is slower stays in the table and is built on by nobody.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as checkpoint_of_torch

from labs.day1_one_gpu_to_many import single_gpu as mine
from shardlab.data import corpus_tokens, token_batches
from shardlab.models import Transformer, TransformerConfig, build
from shardlab.models.transformer import causal_attention
from shardlab.observe import PeakMemory, StepClock, flops

VOCABULARY = 4096
LEARNING_RATE = 1e-3
SEED = 0
PATIENCE = 5.0
MARGIN = 0.97  # what is not 3 % faster is as fast: the simpler recipe stays
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 2e-2}  # relative, of every loss of the curve


@dataclass(frozen=True)
class Size:
    """What is trained: a Llama-style model with a tied output, by AdamW.

    Attributes:
        sequence: tokens per sequence.
        hidden: width of the model.
        layers: number of blocks.
        heads: attention heads.
        batch: sequences per step.
        steps: steps per rung; the first one warms up and is not timed.
        chunk: tokens per chunk of the loss.
    """

    sequence: int
    hidden: int
    layers: int
    heads: int
    batch: int
    steps: int
    chunk: int

    @property
    def config(self) -> TransformerConfig:
        return TransformerConfig(
            vocab=VOCABULARY,
            hidden=self.hidden,
            layers=self.layers,
            heads=self.heads,
            kv_heads=self.heads,
            ffn=8 * self.hidden // 3,
            sequence=self.sequence,
        )


# Large enough on its device that arithmetic and memory traffic, not the launching of operations, fill the step.
SIZE_ON = {
    "cpu": Size(sequence=1536, hidden=64, layers=2, heads=4, batch=2, steps=3, chunk=256),
    "cuda": Size(sequence=4096, hidden=768, layers=6, heads=12, batch=4, steps=8, chunk=2048),
}
COMPILE_ON = {"cpu": False, "cuda": True}  # unasked; for a CPU a C++ compiler works longer than all other rungs take


# --- How a step is computed -------------------------------------------------------------------------------------------


def naive_attention(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention as the formula has it: all scores [B, heads, T, T], written to memory and read back each time.

    Args: query, key, value [B, heads, T, head_dim]. Returns the same shape.
    """
    scores = query @ key.mT / math.sqrt(query.shape[-1])
    future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ value


def full_loss(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    """Mean cross-entropy from logits [B, T, vocab] in full."""
    return F.cross_entropy((hidden @ weight.mT).float().flatten(0, -2), targets.flatten())


def chunked_loss_of_torch(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    """The same with torch's means: each chunk's logits under its checkpoint, so that backward makes them again."""
    total = 0.0
    for states, labels in zip(hidden.flatten(0, -2).split(chunk), targets.flatten().split(chunk), strict=True):
        sum_of_chunk = partial(_summed_loss, weight=weight, labels=labels)
        total = total + checkpoint_of_torch(sum_of_chunk, states, use_reentrant=False)
    return total / targets.numel()


def _summed_loss(states: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy((states @ weight.mT).float(), labels, reduction="sum")


def accumulate_with_torch(
    model: Callable[[Tensor], Tensor],
    micro_batches: Sequence[tuple[Tensor, Tensor]],
    loss_fn: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """What loops usually do: a mean of means, right here because every micro-batch has as many targets."""
    losses = []
    for inputs, targets in micro_batches:
        loss = loss_fn(model(inputs), targets) / len(micro_batches)
        loss.backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


@dataclass(frozen=True)
class Recipe:
    """How a step is computed; as it stands here, the way a first version does it.

    Attributes:
        attention: query, key, value -> mixed values, causal.
        loss: hidden states [B, T, D], output weight [vocab, D], targets [B, T] -> mean loss.
        accumulate: as `accumulate_gradients` of the lab.
        micro_batch: sequences per forward and backward; the step has `Size.batch` of them whatever this is.
        precision: of matrix products; weights and optimiser stay in float32.
        compiled: each block is compiled. All blocks share one compilation, which takes a fraction of the whole model's.
        fused: one kernel for all of AdamW, instead of some ten for each parameter.
        checkpoint: None, or what to run each block under.
    """

    attention: Callable[[Tensor, Tensor, Tensor], Tensor] = naive_attention
    loss: Callable[[Tensor, Tensor, Tensor], Tensor] = full_loss
    accumulate: Callable[..., Tensor] = mine.accumulate_gradients
    micro_batch: int = 1
    precision: torch.dtype = torch.float32
    compiled: bool = False
    fused: bool = False
    checkpoint: Callable[..., Any] | None = None


class Trainer:
    """The model and its optimiser, trained by one recipe."""

    def __init__(self, size: Size, recipe: Recipe, device: torch.device) -> None:
        self.recipe, self.device = recipe, device
        self.model = build(size.config, SEED).to(device)
        for block in self.model.blocks:
            block.attention.mix = recipe.attention
            if recipe.compiled:
                block.forward = torch.compile(block.forward)
            if recipe.checkpoint:
                block.forward = partial(recipe.checkpoint, block.forward)
        self.weight = self.model.head.weight
        self.model.head = nn.Identity()  # the loss multiplies by the output weight itself
        fused, lr = recipe.fused, LEARNING_RATE
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, fused=fused, foreach=False)
        self.scaler = mine.LossScaler() if recipe.precision == torch.float16 else None

    def step(self, tokens: Tensor) -> float:
        """Train on tokens [batch, T + 1]; the mean loss before the update."""
        micro_batches = [(rows[:, :-1], rows[:, 1:]) for rows in tokens.split(self.recipe.micro_batch)]
        self.optimizer.zero_grad()
        loss = self.recipe.accumulate(self.hidden_states, micro_batches, self.loss)
        if self.scaler:
            loss = loss / self.scaler.value
            self.scaler.step(self.optimizer)
        else:
            self.optimizer.step()
        return loss.item()

    def hidden_states(self, inputs: Tensor) -> Tensor:
        with self.autocast():
            return self.model(inputs)

    def loss(self, hidden: Tensor, targets: Tensor) -> Tensor:
        with self.autocast():
            loss = self.recipe.loss(hidden, self.weight, targets)
        return self.scaler.scale(loss) if self.scaler else loss

    def autocast(self) -> AbstractContextManager[None]:
        """For forward only, as torch asks for: backward runs each operation in the precision of its forward."""
        precision = self.recipe.precision
        return torch.autocast(self.device.type, dtype=precision, enabled=precision != torch.float32)


# --- The rungs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rung:
    """One change.

    Attributes:
        name: in the table.
        impl: whose code it needs: ``"mine"``, ``"torch"``, or ``"any"``.
        change: fields of the `Recipe`, with their new values.
        for_memory: it buys memory with time, so the next rung never builds on it.
    """

    name: str
    impl: str
    change: dict[str, Any] = field(default_factory=dict)
    for_memory: bool = False


def all_rungs(size: Size) -> list[Rung]:
    """The ladder of `run_single_gpu.py`, from the bottom up; what has to be compiled comes last, to compile it once."""
    chunk = size.chunk
    return [
        Rung("start", "any"),
        Rung("SDPA", "torch", {"attention": causal_attention}),
        Rung("flash_attention", "mine", {"attention": partial(mine.flash_attention, causal=True)}),
        Rung("loss in chunks, torch", "torch", {"loss": partial(chunked_loss_of_torch, chunk=chunk)}),
        Rung("chunked_cross_entropy", "mine", {"loss": partial(mine.chunked_cross_entropy, chunk=chunk)}),
        Rung("bfloat16", "any", {"precision": torch.bfloat16}),
        Rung("float16, LossScaler", "mine", {"precision": torch.float16}),
        Rung(f"micro-batch of {size.batch}", "any", {"micro_batch": size.batch}),
        Rung(
            "checkpoint, torch",
            "torch",
            {"checkpoint": partial(checkpoint_of_torch, use_reentrant=False)},
            for_memory=True,
        ),
        Rung("checkpoint", "mine", {"checkpoint": mine.checkpoint}, for_memory=True),
        Rung("fused AdamW", "any", {"fused": True}),
        Rung("torch.compile", "any", {"compiled": True}),
    ]


@dataclass(frozen=True)
class Result:
    """What became of a rung. Where ``skipped`` gives a reason, there are no numbers.

    Attributes:
        recipe: what was run, or would have been.
        built_on: name of the rung whose recipe it changed; "" for the first.
        kept: the fastest so far: the next rungs change its recipe.
        seconds: per step, the fastest one: whatever else the machine does only ever adds.
        peak_bytes: most bytes of tensors alive at once in a step, by the kit's count.
        losses: of every step.
        drift: largest relative distance of a loss from the first rung's.
    """

    name: str
    impl: str
    recipe: Recipe
    built_on: str
    skipped: str = ""
    kept: bool = False
    seconds: float | None = None
    tokens_per_second: float | None = None
    peak_bytes: int | None = None
    losses: Sequence[float] = ()
    drift: float | None = None

    @property
    def is_right(self) -> bool:
        """Whether the loss curve stayed where it was; a rung that was skipped moved nothing."""
        return bool(self.skipped) or self.drift <= TOLERANCE[self.recipe.precision]


def climb(
    size: Size,
    device: torch.device,
    rungs: Sequence[Rung],
    start: Recipe | None = None,
    patience: float = PATIENCE,
) -> Iterator[Result]:
    """Train with each rung in turn, on top of the fastest so far; results come one by one.

    Args:
        rungs: the first one is the yardstick.
        start: what the first rung changes; None: a plain `Recipe`.
        patience: a precision whose matrix products are more than so many times slower than float32's is skipped.
    """
    rates = {precision: matmul_rate(precision, device) for precision in TOLERANCE}
    first, best = None, None
    for rung in rungs:
        recipe = replace(best.recipe if best else start or Recipe(), **rung.change)
        result = Result(rung.name, rung.impl, recipe, built_on=best.name if best else "")
        if rates[torch.float32] > patience * rates[recipe.precision]:
            yield replace(result, skipped=too_slow(recipe.precision, rates))
            continue
        try:
            result = replace(result, **measure(size, recipe, device))
        except RuntimeError as error:
            if not (recipe.compiled and is_the_compilers(error)):
                raise
            yield replace(result, skipped=f"does not compile here: {str(error).partition(chr(10))[0]}")
            continue
        first = first or result
        drift = max(abs(loss / right - 1) for loss, right in zip(result.losses, first.losses, strict=True))
        result = replace(result, drift=drift if math.isfinite(drift) else math.inf)
        faster = best is None or result.seconds < MARGIN * best.seconds
        result = replace(result, kept=faster and result.is_right and not rung.for_memory)
        best = result if result.kept else best
        yield result


def measure(size: Size, recipe: Recipe, device: torch.device) -> dict[str, Any]:
    """Train ``size.steps`` steps from the same weights on the same text: the numbers of a `Result`.

    The first step warms up and is not timed. Bytes are counted in a step of its own, because counting takes time; the
    counter cannot look into compiled code, so a compiled recipe is counted as it is without compilation.
    """
    batches = text(size, device)
    trainer = Trainer(size, recipe, device)
    clock = StepClock(size.batch * size.sequence, warmup=1, device=device)
    losses = []
    for _ in range(size.steps):
        tokens = next(batches)
        with clock.step():
            losses.append(trainer.step(tokens))
    with PeakMemory() as memory:
        Trainer(size, replace(recipe, compiled=False), device).step(tokens)
    seconds = fastest(clock)
    speed = {"seconds": seconds, "tokens_per_second": clock.tokens_per_step / seconds}
    return {"losses": losses, "peak_bytes": memory.peak_bytes} | speed


def fastest(clock: StepClock) -> float:
    """Seconds of the fastest step after warm-up."""
    return min(clock.all_seconds[clock.warmup :])


def time_in_turns(size: Size, recipes: Sequence[Recipe], device: torch.device, turns: int = 2) -> list[float]:
    """Seconds per step of each recipe, the fastest of some, a step each in turns: what the machine does meets all."""
    trainers = [Trainer(size, recipe, device) for recipe in recipes]
    clocks = [StepClock(size.batch * size.sequence, warmup=1, device=device) for _ in recipes]
    batches = text(size, device)
    for _ in range(1 + turns):
        tokens = next(batches)
        for trainer, clock in zip(trainers, clocks, strict=True):
            with clock.step():
                trainer.step(tokens)
    return [fastest(clock) for clock in clocks]


def text(size: Size, device: torch.device) -> Iterator[Tensor]:
    """Batches of real text: token ids [batch, T + 1]."""
    tokens = corpus_tokens("train", VOCABULARY)
    return (batch.to(device) for batch in token_batches(tokens, size.batch, size.sequence + 1, SEED))


def step_flops(size: Size) -> int:
    """FLOPs of the model in forward and backward of one step, however a recipe computes it."""
    with torch.device("meta"):
        model = Transformer(size.config)
    return flops(model, torch.zeros(size.batch, size.sequence, dtype=torch.int64))


def matmul_rate(precision: torch.dtype, device: torch.device) -> float:
    """FLOP/s of square matrix products in this precision: as large ones as take 10 ms, the best of three."""
    width, seconds = 128, 0.0
    while seconds < 0.01 and width < 16384:
        width *= 2
        matrix = torch.randn(width, width, device=device).to(precision)
        matrix @ matrix
        clock = StepClock(1, warmup=0, device=device)
        for _ in range(3):
            with clock.step():
                matrix @ matrix
        seconds = min(clock.all_seconds)
    return 2 * width**3 / seconds


def is_the_compilers(error: RuntimeError) -> bool:
    """Whether torch.compile raised it, for want of a C++ compiler for example."""
    from torch._dynamo.exc import BackendCompilerFailed  # here: importing it takes seconds, and fixes its cache's place

    return isinstance(error, BackendCompilerFailed)


def too_slow(precision: torch.dtype, rates: dict[torch.dtype, float]) -> str:
    """Why a precision is not worth a try on this device, in words."""
    slower = rates[torch.float32] / rates[precision]
    seen = f"{rates[precision] / 1e9:,.1f} GFLOP/s, float32's at {rates[torch.float32] / 1e9:,.0f}"
    return f"its matrix products run at {seen}: {slower:.0f} times slower, the processor has no units for it"
