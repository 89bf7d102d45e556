"""Slots: each sandbox that runs at a time has a user id of its own, which no other process on the machine has."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from shardlab.bad_input import BadInput

FIRST_USER_ID = 64_000  # above people and system services, below the ids that containers are given
SLOTS = 256
FOLDER = Path("/run/lock/shardlab-slots")


@contextlib.contextmanager
def own_slot() -> Iterator[int]:
    """A user id (and group id) for the block; two graders on one machine never get the same (root only).

    Raises:
        BadInput: all are in use.
    """
    FOLDER.mkdir(mode=0o700, parents=True, exist_ok=True)
    for slot in range(SLOTS):
        with (FOLDER / str(slot)).open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                continue
            os.set_inheritable(lock.fileno(), False)
            yield FIRST_USER_ID + slot
            return
    raise BadInput(f"{SLOTS} sandboxes are in use: wait for another grader on this machine, or lower --jobs")
