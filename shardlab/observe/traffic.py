"""`Traffic`: the ledger of one rank's communication."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import Any

from shardlab.observe.calls import Call, listen


@dataclass(frozen=True, slots=True)
class Mark:
    """A named moment between calls, so that a test can grade *order*: which bucket left before which gradient."""

    name: str


class Traffic:
    """Every collective and point-to-point call this rank makes inside the block, in order.

        with Traffic() as traffic:
            dist.all_reduce(torch.ones(10))
        traffic.sent_bytes("all_reduce")  # 40 on 2 ranks: 2 (N-1)/N of 40 bytes

    Attributes:
        events: calls and marks in the order they happened on this rank.
    """

    def __init__(self, events: Iterable[Call | Mark] = ()) -> None:
        self.events: list[Call | Mark] = list(events)

    def __enter__(self) -> Traffic:
        self._listening = listen(self.events.append)
        self._listening.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.__exit__(kind, error, trace)

    def mark(self, name: str) -> None:
        """Note a named moment in `events`, such as "gradient of layer 0 ready"."""
        self.events.append(Mark(name))

    @property
    def calls(self) -> list[Call]:
        return [event for event in self.events if isinstance(event, Call)]

    def ops(self) -> list[str]:
        """Names of the calls, in order."""
        return [call.op for call in self.calls]

    def count(self, op: str | None = None) -> int:
        """How many calls, of one kind or all."""
        return len(self._of(op))

    def sent_bytes(self, op: str | None = None) -> int:
        """Bytes this rank sent, by the standard algorithms' accounting (`shardlab.observe.standard`)."""
        return sum(call.sent_bytes for call in self._of(op))

    def payload_bytes(self, op: str | None = None) -> int:
        """Bytes the calls were about, whoever sent them."""
        return sum(call.payload_bytes for call in self._of(op))

    def _of(self, op: str | None) -> list[Call]:
        return [call for call in self.calls if op is None or call.op == op]

    def to_data(self) -> list[dict[str, Any]]:
        """Plain data, to leave a rank with; `from_data` reads it back."""
        return [asdict(event) for event in self.events]

    @classmethod
    def from_data(cls, data: Iterable[dict[str, Any]]) -> Traffic:
        return cls(Mark(**event) if set(event) == {"name"} else Call.from_data(event) for event in data)
