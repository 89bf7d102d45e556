"""What runs inside a rank: the one place where the learner's code is imported.

`shardlab.ranks` calls these functions in fresh rank processes. They give back plain data only, as one dict per rank:
the value, the positional arguments as the call left them, the traffic, and the error where one was asked for.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

from shardlab import NotAttempted
from shardlab.observe import Traffic
from shardlab.ranks import device
from shardlab.ranks.wire import UnsendableError, encode

Job = tuple[str, str, type[Exception] | None]  # the folder of labs/, the lab's module, the error to give back


def call_function(own: Sequence[Any], job: Job, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict:
    """Call the lab's function `name` with this rank's `own` arguments and those that all ranks share."""
    return _observed(job, lambda lab: _find(lab, name), [*own, *args], dict(kwargs))


def call_alone(job: Job, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict:
    """Call the lab's function `name` in a process that belongs to no group."""
    dist.destroy_process_group()
    return call_function((), job, name, args, kwargs)


def run_driver(own: Sequence[Any], job: Job, driver: Callable[..., Any], args: Sequence[Any]) -> dict:
    """Call `driver` with the lab's module, this rank's `own` arguments and those that all ranks share."""
    return _observed(job, lambda lab: lambda *inputs: driver(lab, *inputs), [*own, *args], {})


def _observed(job: Job, choose: Callable[[ModuleType], Callable[..., Any]], args: list, kwargs: dict) -> dict:
    labs_root, module, expected = job
    function = choose(_import_lab(labs_root, module))
    args, kwargs = _on_device(args), _on_device(kwargs)
    value, error = None, None
    with Traffic() as traffic:
        try:
            value = function(*args, **kwargs)
        except NotAttempted:
            raise
        except Exception as raised:
            if expected is None or not isinstance(raised, expected):
                raise
            error = str(raised)
    arguments = [_plain(argument) for argument in args]
    return {"value": value, "arguments": arguments, "traffic": traffic.to_data(), "error": error}


def _import_lab(labs_root: str, module: str) -> ModuleType:
    sys.path.insert(0, labs_root)
    lab = importlib.import_module(module)
    if not Path(lab.__file__).is_relative_to(labs_root):
        raise ImportError(f"{module} came from {lab.__file__}, not from {labs_root}")
    return lab


def _find(lab: ModuleType, name: str) -> Callable[..., Any]:
    """A function or class of the lab, or a class's method."""
    found: Any = lab
    for part in name.split("."):
        if not hasattr(found, part):
            raise AttributeError(f'{lab.__name__} has no "{name}": keep the names that the lab came with')
        found = getattr(found, part)
    return found


def _on_device(value: Any) -> Any:
    """`value` with its tensors, also those in lists, tuples and dicts, on this rank's device."""
    if isinstance(value, torch.Tensor | torch.nn.Module):
        return value.to(device())
    if type(value) in (list, tuple):
        return type(value)(_on_device(item) for item in value)
    if type(value) is dict:
        return {key: _on_device(item) for key, item in value.items()}
    return value


def _plain(argument: Any) -> Any:
    """`argument` if it can be sent home, else its type in words: a group or a model is no result."""
    try:
        encode(argument)
    except UnsendableError:
        return f"<{type(argument).__qualname__}>"
    return argument
