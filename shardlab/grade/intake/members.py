"""What a submission's files are called, and which of them is a lab.

A name is data of a stranger: it is checked, compared and shown, and never handed to the file system.
"""

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path, PurePosixPath

from shardlab.grade.intake.limits import MAX_LAB_BYTES, MAX_PATH_BYTES, MAX_PATH_DEPTH
from shardlab.grade.workspace import SubmissionError

_NOISE = {
    *("__MACOSX", ".DS_Store", "Thumbs.db", "desktop.ini"),
    *("__pycache__", ".ipynb_checkpoints", ".pytest_cache", ".ruff_cache", ".git", ".venv", "node_modules"),
}
_ARCHIVES = (".zip", ".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".bundle", ".7z", ".rar")
_SHOWN_CHARACTERS = 120
_DRIVE = re.compile(r"[A-Za-z]:")


class Kind(Enum):
    """What a member of an archive or an entry of a folder is; the value says it in a sentence."""

    FILE = "a file"
    LINK = "a link"
    HARD_LINK = "a hard link"
    SUBMODULE = "another repository"
    SPECIAL = "a device, pipe or socket"


@dataclass(frozen=True)
class Member:
    """Anything in a submission but a folder.

    Attributes:
        name: checked, with ``/`` between its parts.
        kind: only a `FILE` can be a lab.
        data: its bytes, if it is a file that may be a lab.
    """

    name: PurePosixPath
    kind: Kind
    data: bytes | None = None


def shown(name: object) -> str:
    """A stranger's name as it may stand in a sentence: one line of it, without control characters."""
    text = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in str(name))
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}..."


def checked_name(name: str) -> PurePosixPath:
    """`name` as a relative path, ``.`` and doubled slashes taken out.

    Raises:
        SubmissionError: no honest program writes such a name.
    """
    if problem := _problem(name):
        raise SubmissionError(f'the submission holds "{shown(name)}", a name {problem}: pack it again')
    return PurePosixPath(name)


def _problem(name: str) -> str | None:
    if "\0" in name:
        return "with a NUL byte"
    if "\\" in name:
        return "with a backslash; folders are separated by /"
    if name.startswith("/"):
        return "that begins at the root of a disk"
    if _DRIVE.match(name):
        return "that begins with a drive letter"
    parts = name.split("/")
    if ".." in parts:
        return "that climbs out of its folder with .."
    if len(name.encode(errors="surrogateescape")) > MAX_PATH_BYTES:
        return f"of more than {MAX_PATH_BYTES:,} bytes"
    if len(parts) > MAX_PATH_DEPTH:
        return f"more than {MAX_PATH_DEPTH} folders deep"
    return None


def check_size(name: PurePosixPath, size: int) -> None:
    """SubmissionError for a lab that is too big."""
    if size > MAX_LAB_BYTES:
        raise SubmissionError(f'"{shown(name)}" has more than {MAX_LAB_BYTES:,} bytes; a lab has some 10,000')


class Labs:
    """The lab files that count, and which name in a submission stands for which.

    Args:
        wanted: relative to labs/, each ``day/topic.py``.
    """

    def __init__(self, wanted: Iterable[Path]) -> None:
        self.wanted = tuple(wanted)
        self._by_folded = {_folded(file.parts): file for file in self.wanted}

    def near(self, name: PurePosixPath) -> Path | None:
        """The lab that `name` means, whatever folder its day lies in and however it is capitalised."""
        return self._by_folded.get(_folded(name.parts[-2:]))

    def is_lab(self, name: PurePosixPath) -> bool:
        return (lab := self.near(name)) is not None and name.parts[-2:] == lab.parts


def _folded(parts: Iterable[str]) -> tuple[str, ...]:
    return tuple(unicodedata.normalize("NFC", part).casefold() for part in parts)


def is_noise(name: PurePosixPath) -> bool:
    """Left by a program and of no interest to anybody."""
    return not _NOISE.isdisjoint(name.parts) or name.name.startswith("._")


def is_archive(name: str) -> bool:
    return name.lower().endswith(_ARCHIVES)
