"""What every strategy is given, and what it must give back."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any

from shardlab.models.config import TransformerConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from shardlab.models import Transformer

Step = "Callable[[Tensor], Tensor | None]"
"""One training step on a rank: takes the whole global batch, [rows, sequence] int64, the same on every rank; does
forward, backward and update; returns this rank's loss, or None where it has none (a pipeline stage before the last).
The mean over the ranks that have one must be the loss of the whole batch."""

OBSERVED_STEP = 2
"""Memory is followed from the first tensor to the end of this step, traffic during it, time after it. Before it,
optimisers make their state and torch's DDP rearranges its buckets."""

FEWEST_STEPS = OBSERVED_STEP + 2
REGISTERED = "shardlab_strategy"


@dataclass(frozen=True)
class Job:
    """One training job, the same for every strategy.

    Args:
        config: shape of the model.
        rows: sequences in the global batch; every number of ranks in use divides it.
        steps: training steps, 4 or more.
        learning_rate: of AdamW.
        seed: of the weights and of the order of the batches.

    Raises:
        ValueError: too few steps to observe some and time others.
    """

    config: TransformerConfig = field(
        default_factory=lambda: TransformerConfig(
            vocab=1024, hidden=128, layers=4, heads=4, kv_heads=2, ffn=384, sequence=128
        )
    )
    rows: int = 16
    steps: int = 16
    learning_rate: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        if self.steps < FEWEST_STEPS:
            raise ValueError(
                f"the tour observes the first steps and times the rest: {FEWEST_STEPS} or more, not {self.steps}"
            )

    @property
    def tokens_per_step(self) -> int:
        """Tokens in a global batch."""
        return self.rows * self.config.sequence

    def model(self) -> Transformer:
        """A new model with the job's weights, on this rank's device."""
        from shardlab.models import build
        from shardlab.ranks import device

        return build(self.config, self.seed).to(device())

    def optimizer(self, parameters: Iterable[Tensor]) -> torch.optim.Optimizer:
        """A new AdamW.

        Its eps is large on purpose. With the usual 1e-8 Adam forgives gradients of a wrong scale, such as a sum over
        the ranks in place of the average; with 1e-5 that mistake moves the loss by 1e-3, and is seen.
        """
        import torch

        return torch.optim.AdamW(parameters, lr=self.learning_rate, eps=1e-5, weight_decay=0.0)

    def batches(self) -> Iterator[Tensor]:
        """The global batches, in the same order for every strategy, on this rank's device."""
        from shardlab.data import corpus_tokens, token_batches
        from shardlab.ranks import device

        tokens = corpus_tokens("train", self.config.vocab)
        batches = token_batches(tokens, self.rows, self.config.sequence, self.seed)
        return (batch.to(device()) for batch in batches)


@dataclass(frozen=True)
class Strategy:
    """A way to train, as it is registered.

    Args:
        key: name of the function.
        name: for tables and pictures.
        ranks: how many it runs on.
        lesson: id of the lesson that teaches it, "" for what torch has built in.
        explanation: the function's docstring, in plain words: it stands on the page.
        like: name of the strategy whose losses it must have, itself if it trains a model of its own; "": the first.
    """

    key: str
    name: str
    ranks: int
    lesson: str
    explanation: str
    like: str = ""


def strategy(name: str, *, ranks: int, lesson: str = "", like: str = "") -> Callable[[Callable], Callable]:
    """Register a function as a strategy of the tour; the first one in its module is the yardstick for the others, but
    for those that name another in ``like``.

    The function gets a `Job` on every rank, sets up, and returns a `Step`.

        @strategy("one process", ranks=1)
        def one_process(job):
            \"\"\"What it does, in plain words.\"\"\"
            model = job.model()
            optimizer = job.optimizer(model.parameters())

            def step(batch):
                loss = next_token_loss(model(batch), batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                return loss

            return step
    """

    def register(function: Callable) -> Callable:
        words = inspect.cleandoc(function.__doc__)
        setattr(function, REGISTERED, Strategy(function.__name__, name, ranks, lesson, words, like))
        return function

    return register


def registered(module: ModuleType) -> dict[Strategy, Callable[[Job], Any]]:
    """The strategies of a module, in the order in which they are written there."""
    return {getattr(each, REGISTERED): each for each in vars(module).values() if hasattr(each, REGISTERED)}
