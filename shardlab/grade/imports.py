"""Adds one import to a module's source where ruff's isort rules put it."""

import ast
from itertools import takewhile

OURS = ("labs", "shardlab")  # first-party packages: their imports form the last section
LINE_LENGTH = 120


def with_import(source: str, module: str, name: str) -> str:
    """`source` with ``from module import name``, `module` being one of ours, sorted among the imports at its top."""
    lines = source.splitlines(keepends=True)
    body = ast.parse(source).body
    docstring = body[:1] if ast.get_docstring(ast.Module(body, [])) is not None else []
    top = list(takewhile(lambda node: isinstance(node, ast.Import | ast.ImportFrom), body[len(docstring) :]))
    ours = [node for node in top if _package(node) in OURS]
    for node in ours:
        if isinstance(node, ast.ImportFrom) and node.module == module:
            lines[node.lineno - 1 : node.end_lineno] = [_statement(module, [*node.names, ast.alias(name)])]
            return "".join(lines)
    statement = _statement(module, [ast.alias(name)])
    after = [node for node in ours if isinstance(node, ast.ImportFrom) and node.module > module]
    if after:
        lines.insert(after[0].lineno - 1, statement)
    elif ours:
        lines.insert(ours[-1].end_lineno, statement)
    else:
        before = (docstring + top)[-1:]
        lines.insert(before[0].end_lineno if before else 0, f"\n{statement}" if before else f"{statement}\n")
    return "".join(lines)


def _package(node: ast.Import | ast.ImportFrom) -> str:
    module = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
    return module.partition(".")[0]


def _statement(module: str, names: list[ast.alias]) -> str:
    parts = [ast.unparse(name) for name in sorted(names, key=_isort_key)]
    line = f"from {module} import {', '.join(parts)}\n"
    if len(line) <= LINE_LENGTH + 1:
        return line
    return f"from {module} import (\n" + "".join(f"    {part},\n" for part in parts) + ")\n"


def _isort_key(alias: ast.alias) -> tuple[int, str]:
    """Constants, then classes, then the rest, each in the order of the alphabet."""
    name = alias.name
    kind = 0 if name.isupper() and len(name) > 1 else 1 if name[:1].isupper() else 2
    return kind, name
