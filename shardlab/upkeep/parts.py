"""Whether a lesson's six parts are there and are what they should be, as far as a reader of files can tell."""

import ast
import json
from collections.abc import Iterator

from shardlab.slides import Deck
from shardlab.syllabus import Lesson

FEWEST_LINES = 40  # of code and text; a lesson's part below that is a stub
FEWEST_CODE_CELLS = 5


def shortcomings(lesson: Lesson) -> list[str]:
    """What `lesson` lacks to be called ready, each as one sentence; empty when it lacks nothing."""
    files = [*lesson.parts.values(), *lesson.requirements]
    absent = [f"there is no {file.relative_to(lesson.root)}" for file in files if not file.is_file()]
    return absent or list(_weak_parts(lesson))


def _weak_parts(lesson: Lesson) -> Iterator[str]:
    for name in ("solution", "lab", "script", "tests"):
        yield from (f"{name}: {weakness}" for weakness in _weak_code(name, lesson))
    yield from (f"notebook: {weakness}" for weakness in _weak_notebook(lesson))
    yield from (f"slides: {problem}" for problem in Deck(lesson.slides).problems())


def _weak_code(name: str, lesson: Lesson) -> Iterator[str]:
    source = lesson.parts[name].read_text(encoding="utf-8")
    must_hold = {
        "solution": "# BEGIN SOLUTION",
        "lab": f'raise NotAttempted("{lesson.id} ',
        "script": 'if __name__ == "__main__":',
        "tests": f'@exercise("{lesson.id}"',
    }
    if must_hold[name] not in source:
        yield f"it holds no `{must_hold[name]}`"
    if len(source.splitlines()) < FEWEST_LINES:
        yield f"{len(source.splitlines())} lines are a stub"
    if not ast.get_docstring(ast.parse(source)):
        yield "it has no docstring"


def _weak_notebook(lesson: Lesson) -> Iterator[str]:
    notebook = json.loads(lesson.notebook.read_text(encoding="utf-8"))
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code" and "".join(cell["source"]).strip()]
    outputs = [output for cell in code for output in cell["outputs"]]
    if len(code) < FEWEST_CODE_CELLS:
        yield f"{len(code)} code cells are a stub"
    if not all(cell["execution_count"] for cell in code):
        yield "it is committed without having run"
    if any(output["output_type"] == "error" for output in outputs):
        yield "a cell ended in an error"
    if not any(kind.startswith("image/") for output in outputs for kind in output.get("data", {})):
        yield "it shows no picture"
    if not any("# NBVAL_CHECK_OUTPUT" in "".join(cell["source"]) for cell in code):
        yield "no cell's output is compared (# NBVAL_CHECK_OUTPUT)"
    if notebook["metadata"].get("kernelspec", {}).get("name") != "python3":
        yield "it asks for another kernel than python3"
