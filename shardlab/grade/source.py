"""What a lab's source says, read and never run."""

import ast
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Definition:
    """A function, class or method of a module.

    Attributes:
        line: of its ``def`` or ``class``.
        untouched: it is a function that still raises NotAttempted, as `shardlab release` wrote it.
    """

    line: int
    untouched: bool


def definitions(path: Path) -> dict[str, Definition]:
    """By name (``function``, ``Class``, ``Class.method``); empty for a file that is missing or not Python."""
    try:
        return definitions_in(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):  # also for what is nested too deep
        return {}


def definitions_in(source: bytes | str) -> dict[str, Definition]:
    """The same for the text of a file; raises what `ast.parse` does."""
    tree = ast.parse(source)
    found = {}
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = {f"{node.name}.{method.name}": _function(method) for method in node.body if _is_function(method)}
            started = methods.get(f"{node.name}.__init__")
            found |= {node.name: Definition(node.lineno, started is not None and started.untouched), **methods}
        elif _is_function(node):
            found[node.name] = _function(node)
    return found


def _is_function(node: ast.stmt) -> bool:
    return isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)


def _function(node: ast.FunctionDef) -> Definition:
    return Definition(node.lineno, untouched=any(_raises_not_attempted(statement) for statement in node.body))


def _raises_not_attempted(statement: ast.stmt) -> bool:
    match statement:
        case ast.Raise(exc=ast.Call(func=ast.Name(id="NotAttempted"))):
            return True
    return False
