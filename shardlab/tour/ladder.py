"""The ladder: what one process gains alone, one change at a time, before others come in."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from shardlab.not_attempted import NotAttempted


@dataclass(frozen=True)
class Rung:
    """One change and what it came to. Where `skipped` gives a reason, there are no numbers.

    Args:
        name: for tables and pictures.
        words: what the change is, for someone who has never heard of it.
        seconds: of a step, median.
        peak_bytes: of live tensors.
        loss: of the last step, nats per token.
        is_right: whether every loss is that of the first rung, within what its number format allows.
    """

    name: str
    words: str
    skipped: str = ""
    seconds: float = 0.0
    peak_bytes: int = 0
    loss: float = 0.0
    is_right: bool = True

    def faster_than(self, first: Rung) -> float:
        """How many times."""
        return first.seconds / self.seconds


def rung_names(module: str) -> list[str]:
    """On a rank: what `climb` of this module will try, from its ``SHOWN``: name -> words."""
    return list(importlib.import_module(module).SHOWN)


def climb(module: str, progress: Path) -> list[dict]:
    """On a rank: the rungs of a module's ``climb()``, as plain data.

    From the first exercise on that nobody has written yet, rungs are skipped with its name.

    Args:
        progress: a file that gets one byte per rung.
    """
    ladder = importlib.import_module(module)
    rungs: list[Rung] = []
    try:
        for rung in ladder.climb():
            rungs.append(rung)
            with progress.open("ab") as file:
                file.write(b".")
    except NotAttempted as missing:
        rungs += [Rung(name, words, str(missing)) for name, words in list(ladder.SHOWN.items())[len(rungs) :]]
    return [asdict(rung) for rung in rungs]


def climbed(rungs: Sequence[Rung]) -> list[Rung]:
    """Those with numbers."""
    return [rung for rung in rungs if not rung.skipped]
