"""The way in: functions and arguments to bytes with cloudpickle, code keeping the name of its file."""

from __future__ import annotations

import io
import types
from collections import ChainMap
from typing import Any, ClassVar

import cloudpickle
import torch


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """cloudpickle replaces the file name, for reproducible bytes; a report without file and line helps nobody."""
    build, arguments = cloudpickle.CloudPickler.dispatch_table[types.CodeType](code)
    return build, tuple(code.co_filename if item == "<dynamic-code>" else item for item in arguments)


def _reduce_torch_namespace(namespace: types.ModuleType) -> tuple[Any, ...]:
    """``torch.ops`` and ``torch.classes`` sit in sys.modules but are no modules to pickle.

    cloudpickle sends them along with any notebook function that uses torch and some attribute called ``ops``.
    """
    return getattr, (torch, namespace.__name__.removeprefix("torch."))


_REDUCERS = {
    types.CodeType: _reduce_code,
    type(torch.ops): _reduce_torch_namespace,
    type(torch.classes): _reduce_torch_namespace,
}


class _Pickler(cloudpickle.CloudPickler):
    dispatch_table: ClassVar = ChainMap(_REDUCERS, cloudpickle.CloudPickler.dispatch_table)


def to_bytes(value: Any) -> bytes:
    """Pickle of `value`, by value where its module cannot be imported (notebook cells, lambdas, closures).

    Raises:
        ValueError: it holds something that belongs to this process (a group, an open file, a lock).
    """
    buffer = io.BytesIO()
    try:
        _Pickler(buffer).dump(value)
    except Exception as error:  # pickle lets the exceptions of any __reduce__ through
        raise ValueError(
            f"the function or its arguments cannot be sent to the ranks ({error}): build what belongs to a process, "
            "such as groups, files and locks, inside the function"
        ) from error
    return buffer.getvalue()
