"""Members of a tar, plain or packed, read as one stream from its beginning to its end.

`tarfile` reads the 512 bytes of a header; what may follow it (long names, pax records) is read here, because that
module believes the sizes it finds and needs quadratic time for records made to cost it.
"""

import bz2
import lzma
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Protocol

from shardlab.grade.intake.limits import MAX_HEADER_BYTES, MAX_XZ_MEMORY, Meter
from shardlab.grade.intake.members import Kind, Member, check_size, checked_name, shown
from shardlab.grade.workspace import SubmissionError

_BLOCK = 512
_CHUNK = 2**16
_BROKEN = (tarfile.HeaderError, zlib.error, lzma.LZMAError, EOFError, OSError, ValueError, OverflowError)
_NAMELESS = (tarfile.XGLTYPE, tarfile.GNUTYPE_LONGLINK)  # about all that follows, or where a link leads
_KINDS = {
    **dict.fromkeys((tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE), Kind.FILE),
    tarfile.SYMTYPE: Kind.LINK,
    tarfile.LNKTYPE: Kind.HARD_LINK,
    **dict.fromkeys((tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE), Kind.SPECIAL),
}


class _Decompressor(Protocol):
    """What bz2 and lzma share."""

    eof: bool
    needs_input: bool
    unused_data: bytes

    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Gzip:
    """zlib's decompressor in the shape of the other two."""

    def __init__(self) -> None:
        self._inner, self._tail = zlib.decompressobj(wbits=31), b""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        piece = self._inner.decompress(self._tail + data, max_length)
        self._tail = self._inner.unconsumed_tail
        return piece

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._tail

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data


def _plain(packed: bytes) -> Iterator[bytes]:
    for at in range(0, len(packed), _CHUNK):
        yield packed[at : at + _CHUNK]


def _unpacked(packed: bytes, make: Callable[[], _Decompressor]) -> Iterator[bytes]:
    """Bytes of all streams in `packed`, never more than `_CHUNK` at a time, in bounded memory."""
    at = 0
    while packed[at : at + _CHUNK].strip(b"\0"):
        decompressor, is_empty = make(), True
        while not decompressor.eof:
            data = packed[at : at + _CHUNK] if decompressor.needs_input else b""
            at += len(data)
            piece = decompressor.decompress(data, _CHUNK)
            if piece:
                is_empty = False
                yield piece
            elif not data and not decompressor.eof:
                raise EOFError("it ends too early")
        if is_empty:
            raise ValueError("a stream of nothing")
        at -= len(decompressor.unused_data)


class _Stream:
    """What comes out, counted before anybody sees it."""

    def __init__(self, pieces: Iterator[bytes], meter: Meter) -> None:
        self._pieces, self._meter = pieces, meter
        self._piece, self._at = b"", 0

    def take(self, size: int) -> bytes:
        """Exactly `size` bytes."""
        return b"".join(self._next(size))

    def skip(self, size: int) -> None:
        for _ in self._next(size):
            pass

    def _next(self, size: int) -> Iterator[bytes]:
        while size > 0:
            if self._at == len(self._piece):
                self._piece, self._at = next(self._pieces, b""), 0
                self._meter.out(len(self._piece))
                if not self._piece:
                    raise EOFError("it ends too early")
            part = self._piece[self._at : self._at + size]
            self._at += len(part)
            size -= len(part)
            yield part


def tar_members(packed: bytes, is_wanted: Callable[[PurePosixPath], bool], meter: Meter) -> Iterator[Member]:
    """Everything in a tar but its folders; the bytes of what is wanted.

    Raises:
        SubmissionError: it is broken, too big, or made to deceive.
    """
    stream = _Stream(_opened(packed), meter)
    try:
        while (header := _header(stream, meter)) is not None:
            name, info = header
            member = _member(stream, checked_name(name), info, is_wanted)
            if member is not None:
                yield member
    except _BROKEN as error:
        raise SubmissionError(f"the tar is broken ({shown(error)}): pack it again") from None


def _opened(packed: bytes) -> Iterator[bytes]:
    if packed.startswith(b"\x1f\x8b"):
        return _unpacked(packed, _Gzip)
    if packed.startswith(b"BZh"):
        return _unpacked(packed, bz2.BZ2Decompressor)
    if packed.startswith(b"\xfd7zXZ\0"):
        return _unpacked(packed, lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MAX_XZ_MEMORY))
    return _plain(packed)


def _header(stream: _Stream, meter: Meter) -> tuple[str, tarfile.TarInfo] | None:
    """The next member's name and header; None at the end."""
    name: str | None = None
    size: int | None = None
    while True:
        block = stream.take(_BLOCK)
        meter.file()  # a header that only names the next counts like one
        if not block.strip(b"\0"):
            return None
        info = tarfile.TarInfo.frombuf(block, "utf-8", "surrogateescape")
        if info.size < 0:
            raise ValueError("a size below zero")
        if info.type == tarfile.GNUTYPE_SPARSE:
            raise SubmissionError(f'"{shown(info.name)}" is packed as a sparse file: pack it again without --sparse')
        if info.type in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE):
            records = _records(_extension(stream, info))
            name, size = _path(records, name), _size(records, size)
        elif info.type == tarfile.GNUTYPE_LONGNAME:
            name = _extension(stream, info).rstrip(b"\0").decode("utf-8", "surrogateescape")
        elif info.type in _NAMELESS:
            _extension(stream, info)
        else:
            info.size = info.size if size is None else size
            return (info.name if name is None else name), info


def _extension(stream: _Stream, info: tarfile.TarInfo) -> bytes:
    if info.size > MAX_HEADER_BYTES:
        raise SubmissionError(f"the tar is made to deceive: a header of {info.size:,} bytes")
    data = stream.take(info.size)
    stream.skip(-info.size % _BLOCK)
    return data


def _records(data: bytes) -> dict[bytes, bytes]:
    """Pax records: each is its own length in decimal digits, a space, ``key=value`` and a newline."""
    records = {}
    while data.strip(b"\0"):
        digits, _, _ = data[:16].partition(b" ")
        length = int(digits)
        if not len(digits) + 2 < length <= len(data) or data[length - 1 : length] != b"\n":
            raise ValueError("a pax record of a wrong length")
        key, equals, value = data[len(digits) + 1 : length - 1].partition(b"=")
        if not equals:
            raise ValueError("a pax record without a value")
        records[key], data = value, data[length:]
    return records


def _path(records: dict[bytes, bytes], before: str | None) -> str | None:
    if sparse := next((key for key in records if key.startswith(b"GNU.sparse")), None):
        raise SubmissionError(
            f"the tar holds a sparse file ({shown(sparse.decode('ascii', 'replace'))}): pack it again"
        )
    return records[b"path"].decode("utf-8", "surrogateescape") if b"path" in records else before


def _size(records: dict[bytes, bytes], before: int | None) -> int | None:
    if b"size" not in records:
        return before
    size = int(records[b"size"])
    if size < 0:
        raise ValueError("a size below zero")
    return size


def _member(
    stream: _Stream, name: PurePosixPath, info: tarfile.TarInfo, is_wanted: Callable[[PurePosixPath], bool]
) -> Member | None:
    kind = _KINDS.get(info.type, Kind.FILE)  # POSIX: what is unknown is a file
    if info.type == tarfile.DIRTYPE:
        return None
    if kind is not Kind.FILE:
        return Member(name, kind)
    data = None
    if is_wanted(name):
        check_size(name, info.size)
        data = stream.take(info.size)
    else:
        stream.skip(info.size)
    stream.skip(-info.size % _BLOCK)
    return Member(name, kind, data)
