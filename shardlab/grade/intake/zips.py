"""Members of a zip, read one by one.

Only what may be a lab is unpacked, so that whatever else an archive claims to hold costs nothing.
"""

import io
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath

from shardlab.grade.intake.limits import LEAVE_OUT, MAX_FILES, Meter
from shardlab.grade.intake.members import Kind, Member, check_size, checked_name, shown
from shardlab.grade.workspace import SubmissionError

_ENTRY = b"PK\x01\x02"
_LOCAL_HEADER_BYTES = 30
_ENCRYPTED = 0x1 | 0x40 | 0x2000
_UNIX = 3
_PLAIN = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the only two whose output is bounded as it is made
# What zipfile raises for bytes that are no zip, beside its own error
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, ValueError, NotImplementedError, EOFError, OverflowError)
_CHUNK = 2**16


def zip_members(packed: bytes, is_wanted: Callable[[PurePosixPath], bool], meter: Meter) -> Iterator[Member]:
    """Everything in a zip but its folders; the bytes of what is wanted.

    Raises:
        SubmissionError: it is broken, locked, too big, or made to deceive.
    """
    if packed.count(_ENTRY) > MAX_FILES:  # before a list of them is made
        raise SubmissionError(f"the submission holds more than {MAX_FILES:,} files: {LEAVE_OUT}")
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            entries = archive.infolist()
            _refuse_overlap(entries)
            for entry in entries:
                meter.file()
                if (member := _member(archive, entry, is_wanted, meter)) is not None:
                    yield member
    except (*_BROKEN, RuntimeError, OSError) as error:
        raise SubmissionError(f"the zip is broken ({shown(error)}): pack it again") from None


def _refuse_overlap(entries: list[zipfile.ZipInfo]) -> None:
    """Two entries that share packed bytes: the trick by which 50 KB become petabytes."""
    end, before = 0, ""
    for entry in sorted(entries, key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise SubmissionError(
                f'the zip is made to deceive: "{shown(before)}" and "{shown(entry.filename)}" share bytes'
            )
        end, before = entry.header_offset + _LOCAL_HEADER_BYTES + entry.compress_size, entry.filename


def _member(
    archive: zipfile.ZipFile, entry: zipfile.ZipInfo, is_wanted: Callable[[PurePosixPath], bool], meter: Meter
) -> Member | None:
    name = checked_name(entry.orig_filename)
    if entry.flag_bits & _ENCRYPTED:
        raise SubmissionError(f'"{shown(name)}" is locked with a password: pack it again without one')
    kind = _kind(entry)
    if kind is None or entry.orig_filename.endswith("/"):
        return None
    if kind is not Kind.FILE or not is_wanted(name):
        return Member(name, kind)
    if entry.compress_type not in _PLAIN:
        raise SubmissionError(f'"{shown(name)}" is packed in a rare way: pack it again with the ordinary one, deflate')
    return Member(name, kind, _read(archive, entry, name, meter))


def _kind(entry: zipfile.ZipInfo) -> Kind | None:
    """None: a folder."""
    mode = entry.external_attr >> 16 if entry.create_system == _UNIX else 0
    match stat.S_IFMT(mode):
        case 0 | stat.S_IFREG:
            return Kind.FILE
        case stat.S_IFDIR:
            return None
        case stat.S_IFLNK:
            return Kind.LINK
    return Kind.SPECIAL


def _read(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, name: PurePosixPath, meter: Meter) -> bytes:
    pieces, size = [], 0
    with archive.open(entry) as file:
        while piece := file.read(_CHUNK):
            meter.out(len(piece))
            size += len(piece)
            check_size(name, size)
            pieces.append(piece)
    return b"".join(pieces)
