"""What a strategy came to, put together from its ranks, and whether it agrees with the yardstick."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from shardlab.tour.job import Job, Strategy

MIB = 2**20


@dataclass(frozen=True)
class Outcome:
    """One strategy, trained.

    Args:
        losses: of the whole batch, one per step, in nats per token.
        tokens_per_second: of all ranks together.
        sent_bytes: in one step, by the rank that sends most.
        device: "cpu" or "cuda".
        peak_bytes, peak_by_kind: of live tensors, on the rank that holds most.
    """

    strategy: Strategy
    device: str
    losses: list[float]
    tokens_per_second: float
    sent_bytes: int
    peak_bytes: int
    peak_by_kind: dict[str, int]

    def to_data(self) -> dict:
        """Plain data for a file; a loss that is not a number is None there."""
        return {**asdict(self), "losses": [loss if math.isfinite(loss) else None for loss in self.losses]}

    def differences(self, yardstick: "Outcome") -> list[float]:
        """Relative distance of each step's loss from the yardstick's; infinite where a loss is not a number."""
        pairs = zip(self.losses, yardstick.losses, strict=True)
        return [abs(own - other) / other if math.isfinite(own - other) else math.inf for own, other in pairs]

    def difference(self, yardstick: "Outcome") -> float:
        """The largest of `differences`."""
        return max(self.differences(yardstick))


def yardsticks(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """For each outcome the one whose losses it must have: the first, or what its strategy names."""
    named = {outcome.strategy.name: outcome for outcome in outcomes} | {"": outcomes[0]}
    return [named[outcome.strategy.like] for outcome in outcomes]


def write_difference(difference: float) -> str:
    """For a table: "1.9e-07", or "0" where every bit is the same."""
    return f"{difference:.1e}" if difference else "0"


def put_together(strategy: Strategy, job: Job, ranks: list[dict]) -> Outcome:
    """The outcome of a strategy from what `train` returned on each rank."""
    losses = [mean_of_those_that_have_one(step) for step in zip(*(rank["losses"] for rank in ranks), strict=True)]
    fullest = max(ranks, key=lambda rank: rank["peak_bytes"])
    return Outcome(
        strategy=strategy,
        device=ranks[0]["device"],
        losses=losses,
        tokens_per_second=job.tokens_per_step / max(rank["seconds"] for rank in ranks),
        sent_bytes=max(rank["sent_bytes"] for rank in ranks),
        peak_bytes=fullest["peak_bytes"],
        peak_by_kind=dict(fullest["peak_by_kind"]),
    )


def mean_of_those_that_have_one(losses: tuple[float | None, ...]) -> float:
    """The loss of the whole batch in one step; NaN when no rank has one, which agrees with nothing."""
    there = [loss for loss in losses if loss is not None]
    return sum(there) / len(there) if there else math.nan
