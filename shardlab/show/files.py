"""Files that are there whole or not at all."""

import os
import tempfile
from pathlib import Path


def write_bytes(path: Path | str, content: bytes) -> Path:
    """Write `path` atomically and make its folder; a reader, or a second writer, never meets half a file.

    Raises:
        OSError: the folder cannot be made or written; nothing is left behind.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        Path(temporary).chmod(0o666 & ~current_umask())  # mkstemp makes it private
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_text(path: Path | str, content: str) -> Path:
    """`write_bytes` for UTF-8 text."""
    return write_bytes(path, content.encode())


def current_umask() -> int:
    """The permission bits that this process leaves off new files; reading them means setting them."""
    umask = os.umask(0o022)
    os.umask(umask)
    return umask
