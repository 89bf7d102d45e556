"""Where ranks live when it is not beside their caller: in a sandbox that somebody else builds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Enclosure:
    """A place apart for a pool's warm parent and its ranks, as `RankPool` needs to know it.

    What comes out of it is read as a stranger's: see `shardlab.ranks.reading`.

    Attributes:
        enter: the command that runs its arguments inside.
        descriptors: open files that `enter` reads, such as a filter of system calls.
        calls: a folder of the caller's that is seen inside under the same path, for what goes to and fro.
        owner: user and group id of the ranks, where they are not the caller's.
        environment: all that the ranks get of one.
        path: their sys.path before what Python itself puts there.
        working_folder: theirs, inside.
    """

    enter: tuple[str, ...]
    descriptors: tuple[int, ...]
    calls: Path
    owner: tuple[int, int] | None
    environment: Mapping[str, str]
    path: tuple[str, ...]
    working_folder: str

    def give(self, *places: Path) -> None:
        """Make files and folders the ranks' own."""
        if self.owner is not None:
            for place in places:
                os.chown(place, *self.owner, follow_symlinks=False)
