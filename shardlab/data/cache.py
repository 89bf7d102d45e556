"""What was made once and is read from then on."""

import contextlib
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from shardlab.show.files import write_bytes

CHECKOUT = Path(__file__).parents[2]
READ_ONLY = (errno.EROFS, errno.EACCES, errno.EPERM)


def cache_folder() -> Path:
    """$SHARDLAB_CACHE; else .cache/shardlab of the checkout; else, for an installed kit, of the home folder."""
    if chosen := os.environ.get("SHARDLAB_CACHE"):
        return Path(chosen).expanduser()
    root = CHECKOUT if (CHECKOUT / "pyproject.toml").exists() else Path.home()
    return root / ".cache" / "shardlab"


def cached(name: str, make: Callable[[], bytes]) -> bytes:
    """The content of the cache's file `name`, made and written first where it is missing.

    Two processes that meet here at once both make it and both write it whole; the last one stays. A cache that may
    not be written (a read-only checkout) is no error: the content is made each time.

    Args:
        name: a file name that says everything the content depends on.
        make: gives the same bytes in every process.
    """
    path = cache_folder() / name
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    content = make()
    try:
        write_bytes(path, content)
    except OSError as error:
        if error.errno not in READ_ONLY:
            raise
    return content


def cached_arrays(name: str, make: Callable[[], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """`cached` for named arrays; `name` without an ending."""

    def packed() -> bytes:
        file = io.BytesIO()
        np.savez(file, **make())
        return file.getvalue()

    with np.load(io.BytesIO(cached(f"{name}.npz", packed)), allow_pickle=False) as arrays:
        return dict(arrays)
