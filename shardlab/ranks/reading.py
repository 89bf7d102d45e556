"""Files that ranks wrote, read by a process that does not trust them.

A learner's code can put anything where a result is expected: a link to a file that is not its business, a FIFO that
never ends, a terabyte of nothing. None of that may be followed, waited for or loaded.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

MOST_BYTES = 1 << 28  # 256 MiB: many times the largest result of the course


def read_regular(path: Path, most: int = MOST_BYTES, *, end: bool = False) -> bytes | None:
    """The bytes of a regular file, or None where there is none.

    Args:
        path: its folder is the reader's own.
        most: how many bytes are read.
        end: of a longer file read the last `most` bytes, instead of refusing it.

    Raises:
        ValueError: there is something else than a regular file, or it is too large.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:  # a link, a socket, no permission
        raise ValueError(f"{path.name} is no file that can be read: {error.strerror}") from None
    with os.fdopen(_checked(descriptor, path, most, end), "rb") as file:
        return file.read(most)


def _checked(descriptor: int, path: Path, most: int, end: bool) -> int:
    """The descriptor of a regular file, where reading begins; anything else is closed."""
    found = os.fstat(descriptor)
    problem = "" if stat.S_ISREG(found.st_mode) else f"{path.name} is not a regular file"
    if found.st_size > most and not end:
        problem = problem or f"{path.name} has {found.st_size:,} bytes, more than {most:,}"
    if problem:
        os.close(descriptor)
        raise ValueError(problem)
    os.lseek(descriptor, max(0, found.st_size - most), os.SEEK_SET)
    return descriptor
