"""See every collective and point-to-point call of this process, whoever makes it.

All of `torch.distributed` ends in the operators of the namespace ``c10d``: hand-written code, DDP's C++ reducer,
`fully_shard`, DTensor, functional collectives, communication hooks, on any thread. This module puts one function in
front of each of those operators, at the dispatch key *BackendSelect*. That key is part of every call (grad mode,
no-grad and inference mode alike), lies below autograd, so tensor subclasses are already unwrapped, and above the
backends, so redispatching runs the real kernel. Ordinary tensor operations are not touched: they cost nothing extra.

The function only looks when somebody listens (`listen`), and then passes a `Call` to each listener *before* the
operator runs, so that a call that never comes back is seen too.
"""

from __future__ import annotations

import functools
import itertools
import os
import sys
import sysconfig
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch._C import DispatchKey, DispatchKeySet

from shardlab.observe.standard import Payload, sent_bytes

TORCH_FOLDER = str(Path(torch.__file__).parent) + os.sep
LIBRARY_FOLDERS = (TORCH_FOLDER, *{sysconfig.get_path(name) + os.sep for name in ("stdlib", "purelib", "platlib")})
THIS_FILE = __file__
TORCH_LOGGER = "wrapper"  # the decorator around every function of torch.distributed
POINT_TO_POINT = ("send", "recv")


@dataclass(frozen=True, slots=True)
class Call:
    """One call of one rank.

    Attributes:
        op: ``all_reduce``, ``broadcast``, ``reduce``, ``reduce_scatter``, ``all_gather``, ``all_to_all``, ``gather``,
            ``scatter``, ``barrier``, ``send`` or ``recv``.
        numel: elements of the whole payload (for an all-gather: of all ranks' pieces together).
        dtype: such as ``"float32"``.
        shape: of the first tensor handed over.
        payload_bytes: ``numel`` in bytes.
        sent_bytes: what this rank puts on the wire by the standard algorithm (`shardlab.observe.standard`).
        ranks: global ranks of the group.
        async_op: the caller got a handle instead of waiting.
        sequence: how many collectives (or point-to-point calls) this rank had made on this group before this one.
        peer: global rank of the other side of a send or recv (None: not point-to-point, or any source).
        file, line: the caller's line, the innermost one outside torch and other libraries.
    """

    op: str
    numel: int
    dtype: str
    shape: tuple[int, ...]
    payload_bytes: int
    sent_bytes: int
    ranks: tuple[int, ...]
    async_op: bool
    sequence: int
    peer: int | None
    file: str
    line: int

    @classmethod
    def from_data(cls, data: dict[str, Any]) -> Call:
        """A call read back from what `dataclasses.asdict` made of it, also by way of JSON."""
        return cls(**{**data, "shape": tuple(data["shape"]), "ranks": tuple(data["ranks"])})

    @classmethod
    def event(cls, op: str, ranks: tuple[int, ...], shape: tuple[int, ...], dtype: str, file: str, line: int) -> Call:
        """Something that is no operator of torch and sends nothing, written down as a call of `ranks`."""
        return cls(op, 0, dtype, shape, 0, 0, ranks, False, 0, None, file, line)

    @property
    def kind(self) -> tuple:
        """What has to be the same for all ranks of a collective. The blocks of an all-to-all may differ."""
        return (self.op, self.dtype, None if self.op == "all_to_all" else self.shape, self.ranks)

    def __str__(self) -> str:
        shape = ", ".join(map(str, self.shape))
        where = f" with rank {self.peer}" if self.peer is not None else ""
        return f"{self.op} #{self.sequence} {self.dtype}[{shape}] {self.payload_bytes} B{where}"


Listener = Callable[[Call], None]
Carrier = Callable[[Callable[..., Any], list[Any], int, Call], Any]
"""Runs an operator in place of torch: ``carry(operator, arguments, index of the process group among them, call)``."""

_listeners: list[Listener] = []
_carriers: list[Carrier] = []  # the last one carries
_sequences: defaultdict[tuple[str, bool], Iterator[int]] = defaultdict(itertools.count)
_lock = threading.Lock()


@contextmanager
def listen(listener: Listener) -> Iterator[None]:
    """Pass every call this process makes inside the block to `listener`, in order, before it runs."""
    add_listener(listener)
    try:
        yield
    finally:
        with _lock:
            _listeners.remove(listener)


def add_listener(listener: Listener) -> None:
    """Like `listen`, for good: what a rank does for its whole life."""
    with _lock:
        _listeners.append(listener)


@contextmanager
def carried(carrier: Carrier) -> Iterator[None]:
    """Let `carrier` run every operator that this process calls inside the block: see `shardlab.observe.link`."""
    _carriers.append(carrier)
    try:
        yield
    finally:
        _carriers.remove(carrier)


# --- what each operator carries -----------------------------------------------------------------------------------
# name of the operator -> (our name, its tensors as a Payload). Arguments in the order of torch's schemas.


def _flat(tensors: Sequence[Any]) -> list[torch.Tensor]:
    return [tensor for item in tensors for tensor in (item if isinstance(item, (list, tuple)) else [item])]


def _blocks(full: torch.Tensor, ranks: int) -> list[int]:
    return [full.nbytes // ranks] * ranks


def _whole(tensors: Sequence[torch.Tensor], root: int | None = None) -> Payload:
    return Payload(list(tensors), root=root)


def _split_bytes(tensor: torch.Tensor, splits: Sequence[int], ranks: int) -> list[int]:
    if not splits:
        return _blocks(tensor, ranks)
    row_bytes = tensor.nbytes // tensor.shape[0] if tensor.dim() and tensor.shape[0] else 0
    return [rows * row_bytes for rows in splits]


def _gathered(outputs: Sequence[Sequence[torch.Tensor]]) -> Payload:
    """Lists of one tensor per rank, once for every tensor gathered."""
    blocks = [sum(tensor.nbytes for tensor in piece) for piece in zip(*outputs, strict=True)]
    return Payload(_flat(outputs), blocks=blocks)


def _singles(fulls: Sequence[torch.Tensor], ranks: int) -> Payload:
    """Flat tensors that hold one equal block per rank."""
    return Payload(list(fulls), blocks=[sum(tensor.nbytes for tensor in fulls) // ranks] * ranks)


_OPERATORS: dict[str, tuple[str, Callable[[Sequence[Any], int], Payload]]] = {
    "allreduce_": ("all_reduce", lambda a, n: _whole(a[0])),
    "allreduce_coalesced_": ("all_reduce", lambda a, n: _whole(a[0])),
    "broadcast_": ("broadcast", lambda a, n: _whole(a[0], root=a[2])),
    "reduce_": ("reduce", lambda a, n: _whole(a[0], root=a[3])),
    "_allgather_base_": ("all_gather", lambda a, n: _singles([a[0]], n)),
    "allgather_": ("all_gather", lambda a, n: _gathered(a[0])),
    "allgather_coalesced_": ("all_gather", lambda a, n: Payload(_flat(a[0]), blocks=[_bytes(b) for b in a[0]])),
    "allgather_into_tensor_coalesced_": ("all_gather", lambda a, n: _singles(a[0], n)),
    "_reduce_scatter_base_": ("reduce_scatter", lambda a, n: _singles([a[1]], n)),
    "reduce_scatter_": ("reduce_scatter", lambda a, n: _gathered(a[1])),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", lambda a, n: _singles(a[1], n)),
    "alltoall_": ("all_to_all", lambda a, n: Payload(a[1], blocks=[tensor.nbytes for tensor in a[1]])),
    "alltoall_base_": ("all_to_all", lambda a, n: Payload([a[1]], blocks=_split_bytes(a[1], a[4], n))),
    "gather_": ("gather", lambda a, n: _whole(a[1], root=a[3])),
    "scatter_": ("scatter", lambda a, n: Payload(_flat(a[1]) or list(a[0]), blocks=_scattered(a, n), root=a[3])),
    "send": ("send", lambda a, n: Payload(list(a[0]), peer=a[2])),
    "recv_": ("recv", lambda a, n: Payload(list(a[0]), peer=a[2])),
    "recv_any_source_": ("recv", lambda a, n: _whole(a[0])),
    "barrier": ("barrier", lambda a, n: Payload([])),
    "monitored_barrier_": ("barrier", lambda a, n: Payload([])),
}


def _bytes(tensors: Sequence[torch.Tensor]) -> int:
    return sum(tensor.nbytes for tensor in tensors)


def _scattered(arguments: Sequence[Any], ranks: int) -> list[int]:
    """Bytes for each rank; only the root holds them all, the others know their own block."""
    inputs = arguments[1]
    return [tensor.nbytes for tensor in inputs[0]] if inputs else [_bytes(arguments[0])] * ranks


# --- the function in front of each operator -----------------------------------------------------------------------


@functools.cache
def _backend_key(device_type: str) -> DispatchKeySet:
    """The key of a device's kernels: ``CPU``, ``CUDA``, ``Meta``, ..."""
    name = device_type.upper() if hasattr(DispatchKey, device_type.upper()) else device_type.capitalize()
    return DispatchKeySet(getattr(DispatchKey, name))


def _put_in_front(library: torch.library.Library, name: str) -> None:
    op, payload_of = _OPERATORS[name]
    operator = getattr(torch.ops.c10d, name).default
    names = [argument.name for argument in operator._schema.arguments]
    group_at = names.index("process_group")
    async_at = names.index("async_op") if "async_op" in names else None

    def observed(*arguments: Any) -> Any:
        key = _backend_key(_device_type(arguments))
        if _listeners or _carriers:
            group = dist.ProcessGroup.unbox(arguments[group_at])
            call = _describe(op, payload_of(arguments, group.size()), group, _is_async(arguments, async_at))
            for listener in tuple(_listeners):
                listener(call)
            if _carriers:
                return _carriers[-1](functools.partial(operator.redispatch, key), list(arguments), group_at, call)
        return operator.redispatch(key, *arguments)

    library.impl(operator, observed, "BackendSelect")


def _device_type(arguments: Sequence[Any]) -> str:
    """Device of the first tensor among the arguments, which is where the collective runs."""
    for argument in arguments:
        if isinstance(argument, torch.Tensor):
            return argument.device.type
        if isinstance(argument, (list, tuple)) and (tensors := _flat(argument)):
            return tensors[0].device.type
    raise TypeError("a collective without a tensor")


def _is_async(arguments: Sequence[Any], async_at: int | None) -> bool | None:
    """Trailing arguments at their default are left out of a boxed call, and the default is asynchronous."""
    if async_at is None:
        return None
    return arguments[async_at] if async_at < len(arguments) else True


def _describe(op: str, payload: Payload, group: dist.ProcessGroup, async_op: bool | None) -> Call:
    ranks = tuple(dist.get_process_group_ranks(group))
    first = payload.tensors[0] if payload.tensors else None
    file, line, inner = _caller()
    with _lock:
        sequence = next(_sequences[group.group_name, op in POINT_TO_POINT])
    return Call(
        op=op,
        numel=sum(tensor.numel() for tensor in payload.tensors),
        dtype=str(first.dtype).removeprefix("torch.") if first is not None else "none",
        shape=tuple(first.shape) if first is not None else (),
        payload_bytes=payload.total_bytes,
        sent_bytes=sent_bytes(op, payload, group.rank(), len(ranks)),
        ranks=ranks,
        async_op=inner not in POINT_TO_POINT if async_op is None else async_op,
        sequence=sequence,
        peer=ranks[payload.peer] if payload.peer is not None else None,
        file=file,
        line=line,
    )


def _caller() -> tuple[str, int, str]:
    """File and line of the innermost frame outside libraries, and the function of torch called last below it."""
    frame = sys._getframe(1)
    inner = ""
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if file.startswith(TORCH_FOLDER):
            inner = inner if function == TORCH_LOGGER else function
        elif file != THIS_FILE and not file.startswith(LIBRARY_FOLDERS):
            return file, frame.f_lineno, inner
        frame = frame.f_back
    return "(autograd thread)", 0, inner


def short_file(file: str) -> str:
    """Relative to the current folder where it lies below it; a notebook's cells have no file of their own."""
    if "ipykernel_" in file or file.startswith("<ipython-input"):
        return "notebook cell"
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def _install() -> torch.library.Library:
    library = torch.library.Library("c10d", "IMPL")
    for name in _OPERATORS:
        if hasattr(torch.ops.c10d, name):  # `allgather_coalesced_` and others come and go between releases
            _put_in_front(library, name)
    return library


_LIBRARY = _install()  # kept alive: the registration ends with the object
