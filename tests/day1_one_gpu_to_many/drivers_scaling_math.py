"""What runs beside the learner's module in the tests of 1.1: calls of its functions, many in one process.

The judge does not import the lab, so it names the classes that the lab gives: ``{"class": "Gpu", "name": "A100", ...}``
stands for ``lab.Gpu(name="A100", ...)``. Everything else is an argument as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

from shardlab import NotAttempted


def made(lab: ModuleType, argument: Any) -> Any:
    """The argument that a description stands for."""
    if not isinstance(argument, dict):
        return argument
    fields = {name: made(lab, value) for name, value in argument.items() if name != "class"}
    return getattr(lab, argument["class"])(**fields)


def call_each(lab: ModuleType, name: str, calls: Sequence[tuple]) -> list[Any]:
    """What the lab's function ``name`` returns for each of ``calls``."""
    return [getattr(lab, name)(*(made(lab, argument) for argument in arguments)) for arguments in calls]


def errors_of(lab: ModuleType, name: str, calls: Sequence[tuple]) -> list[tuple[str, str]]:
    """Type and message of the error that each call raises; two empty strings where it returns."""
    errors = []
    for arguments in calls:
        try:
            call_each(lab, name, [arguments])
            errors.append(("", ""))
        except NotAttempted:
            raise
        except Exception as error:
            errors.append((type(error).__name__, str(error)))
    return errors
