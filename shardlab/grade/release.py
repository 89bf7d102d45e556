"""Labs made from solutions.

In a solution the body a learner writes stands between ``# BEGIN SOLUTION`` and ``# END SOLUTION``. The lab is the same
file with each such block replaced by ``raise NotAttempted("1.3 ring_all_reduce")``, named after the function or
``Class.method`` around it, and with the import of NotAttempted. Maintainers run this; a lab in which somebody has
begun to write is never overwritten.
"""

import ast
import io
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from shardlab.bad_input import BadInput
from shardlab.grade.course import Course
from shardlab.grade.imports import with_import
from shardlab.grade.source import definitions, definitions_in
from shardlab.show import write_text
from shardlab.syllabus import Lesson

BEGIN, END = "# BEGIN SOLUTION", "# END SOLUTION"


class ReleaseError(BadInput):
    """A solution no lab can be made from: file, line and what is wrong there."""


def release(root: Path) -> list[Path]:
    """Write the labs of the checkout at `root` from its solutions.

    Returns:
        The labs that changed, relative to `root`.

    Raises:
        ReleaseError: markers that do not pair up or stand outside a function, a file of no lesson, or a lab that
            holds somebody's work (no lab is written then).
    """
    changed = _differing(root)
    if begun := begun_labs(root):
        names = ", ".join(map(str, begun))
        raise ReleaseError(f"{names}: exercises are written here, and a release would overwrite them; move them away")
    for lab, text in changed.items():
        write_text(root / lab, text)
    return list(changed)


def drifted(root: Path) -> list[Path]:
    """Labs, relative to `root`, that `release` would change or that have no solution; raises as `release` does."""
    course = Course(root)
    orphans = [
        lesson.lab.relative_to(root)
        for lesson in course.lessons.values()
        if lesson.lab.is_file() and not lesson.solution.is_file()
    ]
    return sorted([*_differing(root), *orphans])


def begun_labs(root: Path) -> list[Path]:
    """Labs, relative to `root`, that `release` would change and in which an exercise no longer raises NotAttempted."""
    return [lab for lab, text in _differing(root).items() if _is_begun(root / lab, text)]


def _is_begun(lab: Path, released: str) -> bool:
    present = definitions(lab)
    exercises = [name for name, each in definitions_in(released).items() if each.untouched]
    return any(name in present and not present[name].untouched for name in exercises)


def _differing(root: Path) -> dict[Path, str]:
    """Text that each lab should have and has not."""
    course = Course(root)
    lessons = {lesson.solution: lesson for lesson in course.lessons.values()}
    wanted = {}
    for solution in sorted((root / "solutions").rglob("*.py")):
        if solution.name == "__init__.py":
            continue
        if solution not in lessons:
            shown = solution.relative_to(root)
            near = course.nearest(solution.stem).solution.relative_to(root)
            raise ReleaseError(f"{shown}:1: this is the solution of no lesson in syllabus.toml; did you mean {near}?")
        lesson = lessons[solution]
        text = lab_text(solution.read_text(encoding="utf-8"), lesson, solution.relative_to(root))
        if not lesson.lab.is_file() or lesson.lab.read_text(encoding="utf-8") != text:
            wanted[lesson.lab.relative_to(root)] = text
    return wanted


@dataclass(frozen=True)
class _Block:
    """Lines `begin` to `end` of a solution, counted from 1, both with a marker on them; `indent` is the marker's."""

    begin: int
    end: int
    indent: str


def lab_text(solution: str, lesson: Lesson, shown: Path) -> str:
    """The lab's source for a solution's; `shown` is the file that errors name."""
    try:
        tree = ast.parse(solution)
    except SyntaxError as error:
        raise ReleaseError(f"{shown}:{error.lineno}: {error.msg}") from None
    blocks = _blocks(solution, shown)
    lines = solution.splitlines(keepends=True)
    for block in reversed(blocks):
        name = _name_around(tree, block, shown)
        lines[block.begin - 1 : block.end] = [f'{block.indent}raise NotAttempted("{lesson.id} {name}")\n']
    lab = "".join(lines)
    try:
        ast.parse(lab)
    except SyntaxError as error:
        raise ReleaseError(f"{shown}: the lab made from it is not Python, line {error.lineno}: {error.msg}") from None
    return with_import(lab, "shardlab", "NotAttempted") if blocks else lab


def _blocks(solution: str, shown: Path) -> list[_Block]:
    blocks: list[_Block] = []
    begin: tokenize.TokenInfo | None = None
    for token in _comments(solution):
        line = token.start[0]
        if token.string == BEGIN:
            if begin:
                raise ReleaseError(f'{shown}:{line}: "{BEGIN}" inside the block that begins at line {begin.start[0]}')
            begin = token
        elif token.string == END:
            if begin is None:
                raise ReleaseError(f'{shown}:{line}: "{END}" without "{BEGIN}"')
            if token.start[1] != begin.start[1]:
                raise ReleaseError(f'{shown}:{line}: "{END}" is not indented like its "{BEGIN}"')
            blocks.append(_Block(begin.start[0], line, begin.line[: begin.start[1]]))
            begin = None
    if begin:
        raise ReleaseError(f'{shown}:{begin.start[0]}: "{BEGIN}" without "{END}"')
    return blocks


def _comments(solution: str) -> Iterator[tokenize.TokenInfo]:
    """Comments that have a line to themselves."""
    for token in tokenize.generate_tokens(io.StringIO(solution).readline):
        if token.type == tokenize.COMMENT and token.line.strip() == token.string:
            yield token


def _name_around(tree: ast.Module, block: _Block, shown: Path) -> str:
    """``function`` or ``Class.method`` around a block; a function inside a function has the outer one's name."""
    inside: ast.stmt | ast.Module | None = tree
    names = []
    while isinstance(inside, ast.Module | ast.ClassDef):
        inside = _child_around(inside, block)
        names.append(getattr(inside, "name", ""))
    if inside is None:
        raise ReleaseError(f'{shown}:{block.begin}: "{BEGIN}" stands outside any function, or its end does')
    return ".".join(names)


def _child_around(parent: ast.Module | ast.ClassDef, block: _Block) -> ast.stmt | None:
    """The function or class right inside `parent` that holds the whole block, comments after its last line included."""
    for child, next_child in zip_longest(parent.body, parent.body[1:]):
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            inside = child.lineno < block.begin and len(block.indent) > child.col_offset
            if inside and (next_child is None or block.end < _first_line(next_child)):
                return child
    return None


def _first_line(node: ast.stmt) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
