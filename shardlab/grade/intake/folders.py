"""Members of a folder, by way of open folders only: no link is followed, and nothing but a regular file is opened."""

import errno
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from shardlab.grade.intake.limits import MAX_LAB_BYTES, Meter
from shardlab.grade.intake.members import Kind, Member, check_size, checked_name, is_noise, shown
from shardlab.grade.workspace import SubmissionError

_OPEN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def folder_members(folder: Path, is_wanted: Callable[[PurePosixPath], bool], meter: Meter) -> Iterator[Member]:
    """Everything in a folder but the folders in it; the bytes of what is wanted.

    Raises:
        SubmissionError: it holds too much, or a lab that is too big or may not be read.
    """
    try:
        yield from _walk(folder, is_wanted, meter)
    except OSError as error:
        name = Path(error.filename).name if isinstance(error.filename, str) else folder.name
        raise SubmissionError(f'"{shown(name)}" cannot be read: {error.strerror}') from None


def _walk(folder: Path, is_wanted: Callable[[PurePosixPath], bool], meter: Meter) -> Iterator[Member]:
    for place, folders, files, opened in os.fwalk(folder, onerror=_raise):
        here = PurePosixPath(os.path.relpath(place, folder))
        for name in sorted(folders):
            inner = checked_name(str(here / name))
            meter.file()
            if stat.S_ISLNK(os.lstat(name, dir_fd=opened).st_mode):
                yield Member(inner, Kind.LINK)
                folders.remove(name)
            elif is_noise(inner):
                folders.remove(name)
        for name in sorted(files):
            meter.file()
            yield _member(name, opened, checked_name(str(here / name)), is_wanted, meter)


def read_regular(path: Path | str, limit: int, folder: int | None = None) -> bytes:
    """The first `limit` bytes of a regular file; nothing else is opened for longer than it takes to see what it is.

    Args:
        folder: descriptor of the folder that `path` lies in.

    Raises:
        OSError: it cannot be opened, is a link or is no regular file.
    """
    with os.fdopen(os.open(path, _OPEN, dir_fd=folder), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(limit)


def _member(
    name: str, folder: int, path: PurePosixPath, is_wanted: Callable[[PurePosixPath], bool], meter: Meter
) -> Member:
    mode = os.lstat(name, dir_fd=folder).st_mode
    if not stat.S_ISREG(mode):
        return Member(path, Kind.LINK if stat.S_ISLNK(mode) else Kind.SPECIAL)
    if not is_wanted(path):
        return Member(path, Kind.FILE)
    try:
        data = read_regular(name, MAX_LAB_BYTES + 1, folder)
    except OSError as error:  # it names no folder
        raise SubmissionError(f'"{shown(path)}" cannot be read: {error.strerror}') from None
    check_size(path, len(data))
    meter.out(len(data))
    return Member(path, Kind.FILE, data)


def _raise(error: OSError) -> None:
    raise error
