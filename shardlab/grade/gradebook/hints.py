"""The hint ladder of an exercise, from the docstring its lab gives the learner."""

import ast
import re
import textwrap
from functools import cache
from pathlib import Path


def hints(lab: Path, exercise: str) -> tuple[str, ...]:
    """The steps below "Hints:" in the docstring of `exercise` in `lab`, or of the class it is a method of; else ()."""
    of_lab = _hints_of(lab)
    return of_lab.get(exercise) or of_lab.get(exercise.partition(".")[0], ())


@cache
def _hints_of(lab: Path) -> dict[str, tuple[str, ...]]:
    """By name of function, class or ``Class.method``; empty for a lab that cannot be read."""
    try:
        tree = ast.parse(lab.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return {}
    return {name: steps(ast.get_docstring(node) or "") for name, node in _documented(tree)}


def _documented(tree: ast.Module) -> list[tuple[str, ast.AST]]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    top = [node for node in tree.body if isinstance(node, kinds)]
    inner = [
        (f"{node.name}.{method.name}", method)
        for node in top
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, kinds)
    ]
    return [*((node.name, node) for node in top), *inner]


def steps(docstring: str) -> tuple[str, ...]:
    """The numbered steps of the section "Hints:", each as one line.

    >>> steps("Sum.\\n\\nHints:\\n    1. Think\\n       first.\\n    2. Call.\\n\\nEnd.")
    ('Think first.', 'Call.')
    """
    _, found, after = docstring.partition("Hints:\n")
    if not found:
        return ()
    section = []
    for line in after.splitlines():
        if line.strip() and not line.startswith(" "):
            break
        section.append(line)
    numbered = re.split(r"^\d+\. ", textwrap.dedent("\n".join(section)), flags=re.MULTILINE)
    return tuple(" ".join(step.split()) for step in numbered[1:])
