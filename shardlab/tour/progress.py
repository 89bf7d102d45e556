"""A bar that moves while ranks train, though their call returns only at the end."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from shardlab.show import progress

LOOK_EVERY_SECONDS = 0.2


@contextmanager
def follow(file: Path, title: str, steps: int) -> Iterator[None]:
    """Show, on a terminal, how many of the steps are done: as many as `file` has bytes."""
    file.touch()
    done = threading.Event()
    with progress(title, steps) as advance:

        def look() -> None:
            seen = 0
            while not done.wait(LOOK_EVERY_SECONDS):
                size = file.stat().st_size
                for _ in range(size - seen):
                    advance()
                seen = size

        thread = threading.Thread(target=look, daemon=True)
        thread.start()
        try:
            yield
        finally:
            done.set()
            thread.join()
