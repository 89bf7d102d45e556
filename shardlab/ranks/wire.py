"""Plain data to bytes and back, without pickle: what a rank may send home.

A message is one JSON header, its length in 8 bytes before it, then the raw bytes of every tensor and byte string in
the order the header names them. Allowed: None, bool, int, float, str, bytes, list, tuple, dict, tensors of any dtype,
numpy arrays and scalars, dataclasses and named tuples (they come back as a `Record`: the receiver need not know, and
never imports, the sender's classes).
"""

from __future__ import annotations

import dataclasses
import json
import math
import struct
from typing import Any

import numpy as np
import torch

_LENGTH = struct.Struct("!Q")
_PLAIN = (type(None), bool, int, str)


class UnsendableError(TypeError):
    """A value that is not plain data, and where in the result it sits."""


class Record:
    """A dataclass or named tuple of a rank, as plain attributes.

    Attributes:
        record_type: name of the class on the rank.
    """

    def __init__(self, record_type: str, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)
        self.record_type = record_type

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in vars(self).items() if name != "record_type")
        return f"{self.record_type}({fields})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Record) and vars(self) == vars(other)

    __hash__ = None  # type: ignore[assignment]  # the values may be lists and tensors


def encode(value: Any) -> bytes:
    """Bytes of `value`.

    Raises:
        UnsendableError: something in it is not plain data; the message says what and where.
    """
    buffers: list[bytes] = []
    header = json.dumps(_encode(value, buffers, "result"), allow_nan=False).encode()
    return b"".join([_LENGTH.pack(len(header)), header, *buffers])


def decode(message: bytes) -> Any:
    """The value `encode` made `message` from.

    Raises:
        ValueError: the message is cut short or malformed.
    """
    if len(message) < _LENGTH.size:
        raise ValueError(f"a message of {len(message)} bytes has no header")
    (length,) = _LENGTH.unpack_from(message)
    if len(message) < _LENGTH.size + length:
        raise ValueError(f"the header of {length} bytes is cut short: the message has {len(message)}")
    header = json.loads(message[_LENGTH.size : _LENGTH.size + length])
    reader = _Reader(memoryview(message)[_LENGTH.size + length :])
    value = _decode(header, reader)
    if reader.rest:
        raise ValueError(f"{len(reader.rest)} bytes follow the end of the message")
    return value


def _encode(value: Any, buffers: list[bytes], where: str) -> Any:
    """JSON form: plain scalars as they are, everything else as ``[kind, ...]``."""
    kind = type(value)
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else ["float", repr(value)]
    if kind in (list, tuple):
        return [kind.__name__, [_encode(item, buffers, f"{where}[{i}]") for i, item in enumerate(value)]]
    if isinstance(value, dict):
        return [
            "dict",
            [[_encode(k, buffers, where), _encode(v, buffers, f"{where}[{k!r}]")] for k, v in value.items()],
        ]
    if isinstance(value, (bytes, bytearray)):
        buffers.append(bytes(value))
        return ["bytes", len(value)]
    if isinstance(value, torch.Tensor):
        return _encode_tensor(value, buffers, where)
    if isinstance(value, np.generic):
        return _encode(value.item(), buffers, where)
    if isinstance(value, np.ndarray):
        return ["array", _encode_tensor(torch.from_numpy(np.array(value)), buffers, where)]
    if (fields := _fields(value)) is not None:
        return ["record", kind.__name__, [[k, _encode(v, buffers, f"{where}.{k}")] for k, v in fields.items()]]
    for base in (bool, int, float, str):  # an IntEnum, a str subclass: the plain value is what counts
        if isinstance(value, base):
            return _encode(base(value), buffers, where)
    raise UnsendableError(
        f"{where} is a {kind.__module__}.{kind.__qualname__}, and a rank can only send plain data home: "
        "return numbers, strings, tensors, lists, dicts or dataclasses of them"
    )


def _fields(value: Any) -> dict[str, Any] | None:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    return value._asdict() if isinstance(value, tuple) and hasattr(value, "_asdict") else None


def _encode_tensor(tensor: torch.Tensor, buffers: list[bytes], where: str) -> list[Any]:
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided or tensor.is_meta:
        raise UnsendableError(
            f"{where} is a {type(tensor).__name__} ({tensor.layout}, {tensor.device}): return a plain tensor, "
            "such as .to_local() or .full_tensor() of a DTensor"
        )
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    buffers.append(plain.flatten().view(torch.uint8).numpy().tobytes() if plain.numel() else b"")
    return ["tensor", str(plain.dtype).removeprefix("torch."), list(plain.shape)]


class _Reader:
    """Hands out the raw bytes behind the header, in order."""

    def __init__(self, rest: memoryview) -> None:
        self.rest = rest

    def take(self, size: int) -> bytes:
        if not 0 <= size <= len(self.rest):
            raise ValueError(f"the message ends {size - len(self.rest)} bytes too soon")
        taken, self.rest = self.rest[:size], self.rest[size:]
        return bytes(taken)


def _decode(form: Any, reader: _Reader) -> Any:
    match form:
        case ["float", text]:
            return float(text)
        case ["list", items]:
            return [_decode(item, reader) for item in items]
        case ["tuple", items]:
            return tuple(_decode(item, reader) for item in items)
        case ["dict", items]:
            return {_decode(key, reader): _decode(value, reader) for key, value in items}
        case ["bytes", size]:
            return reader.take(size)
        case ["tensor", dtype, shape]:
            return _decode_tensor(dtype, shape, reader)
        case ["array", tensor]:
            return _decode(tensor, reader).numpy()
        case ["record", name, items]:
            return Record(name, {key: _decode(value, reader) for key, value in items})
        case [*_]:
            raise ValueError(f"unknown kind in a message: {form[:1]}")
    return form


def _decode_tensor(dtype_name: str, shape: list[int], reader: _Reader) -> torch.Tensor:
    dtype = getattr(torch, dtype_name, None)
    if not isinstance(dtype, torch.dtype) or any(not isinstance(size, int) or size < 0 for size in shape):
        raise ValueError(f"no such tensor: dtype {dtype_name!r}, shape {shape}")
    raw = reader.take(math.prod(shape) * dtype.itemsize)
    if not raw:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(bytearray(raw), dtype=torch.uint8).view(dtype).reshape(shape)
