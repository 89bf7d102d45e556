"""What came back from the ranks, on the judge's side: plain data and no code of the learner's."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from shardlab.observe import Traffic


@dataclass(frozen=True)
class RankResult:
    """What one rank did.

    Attributes:
        rank: which.
        value: what the function returned.
        arguments: its positional arguments as the call left them; one that is not plain data as text such as
            ``"<ProcessGroup>"``.
        traffic: the communication of the call.
    """

    rank: int
    value: Any
    arguments: list[Any]
    traffic: Traffic

    @property
    def tensor(self) -> torch.Tensor:
        """The returned tensor or, for a function that works in place, the first argument after the call."""
        candidates = [self.value, *self.arguments[:1]]
        for candidate in candidates:
            if isinstance(candidate, torch.Tensor):
                return candidate
        raise AssertionError(f"rank {self.rank} returned {self.value!r}, expected a tensor")


class GroupTraffic:
    """The communication of all ranks: `Traffic`'s questions with the rank to ask."""

    def __init__(self, ranks: Sequence[Traffic]) -> None:
        self._ranks = ranks

    def sent_bytes(self, rank: int, op: str | None = None) -> int:
        return self._ranks[rank].sent_bytes(op)

    def payload_bytes(self, rank: int, op: str | None = None) -> int:
        return self._ranks[rank].payload_bytes(op)

    def count(self, rank: int, op: str | None = None) -> int:
        return self._ranks[rank].count(op)

    def ops(self, rank: int) -> list[str]:
        return self._ranks[rank].ops()


class RankResults(Sequence[RankResult]):
    """The results of all ranks, in rank order, and their traffic."""

    def __init__(self, results: Sequence[RankResult]) -> None:
        self._results = tuple(results)
        self.traffic = GroupTraffic([result.traffic for result in results])

    def __len__(self) -> int:
        return len(self._results)

    def __getitem__(self, rank: int) -> RankResult:
        return self._results[rank]

    def __iter__(self) -> Iterator[RankResult]:
        return iter(self._results)
