"""A lesson called ready has all six parts, and none is a stub."""

import json
from pathlib import Path

import pytest

from shardlab.syllabus import ROOT, Lesson, lessons
from shardlab.upkeep import shortcomings


@pytest.mark.parametrize("lesson", [pytest.param(lesson, id=lesson.id) for lesson in lessons(ready=True)])
def test_a_ready_lesson_lacks_nothing(lesson):
    assert shortcomings(lesson) == []


def test_at_least_one_lesson_is_ready():
    assert lessons(ready=True)


def test_no_file_of_a_lesson_is_outside_the_syllabus():
    known = {path for lesson in lessons() for path in lesson.parts.values()}
    for folder, pattern in (("labs", "day*/*.py"), ("solutions", "day*/*.py"), ("notebooks", "**/*.ipynb")):
        found = {path for path in (ROOT / folder).glob(pattern) if path.name != "__init__.py"}
        found = {path for path in found if ".ipynb_checkpoints" not in path.parts}
        if folder == "labs":  # given code that a lesson's script, notebook or tour share is named WORD_topic.py
            found -= {path for lesson in lessons() for path in lesson.lab.parent.glob(f"*_{lesson.slug}.py")}
        assert found <= known, f"no lesson has {sorted(map(str, found - known))}"


SLIDE = (
    "\n## A heading\n\n<!-- Here the speaker says in full and calm sentences what this slide is about, and why. -->\n"
)


@pytest.fixture
def whole(tmp_path) -> Lesson:
    """A small lesson that lacks nothing."""
    lesson = Lesson("1.1", "x", "A lesson", 1, "ready", "day1_test", root=tmp_path)
    filler = "\n".join(f"# line {line}" for line in range(40))
    deck = "---\nmarp: true\ntheme: shardlab\nmath: mathjax\n---\n" + "\n---\n".join([SLIDE] * 12)
    cells = [_cell("# NBVAL_CHECK_OUTPUT\n1", {"image/png": "..."}) for _ in range(5)]
    for path, text in {
        lesson.solution: f'"""A solution."""\n# BEGIN SOLUTION\n# END SOLUTION\n{filler}',
        lesson.lab: f'"""A lab."""\nraise NotAttempted("1.1 f")\n{filler}',
        lesson.script: f'"""A script."""\nif __name__ == "__main__":\n    pass\n{filler}',
        lesson.tests: f'"""Tests."""\n@exercise("1.1", "f", points=1)\ndef test_f(): ...\n{filler}',
        lesson.slides: deck,
        lesson.notebook: json.dumps({"cells": cells, "metadata": {"kernelspec": {"name": "python3"}}}),
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return lesson


def _cell(source: str, data: dict) -> dict:
    output = {"output_type": "display_data", "data": data}
    return {"cell_type": "code", "source": source, "execution_count": 1, "outputs": [output]}


def test_a_whole_lesson_passes(whole):
    assert shortcomings(whole) == []


@pytest.mark.parametrize("part", ["slides", "notebook", "lab", "tests", "script", "solution"])
def test_each_part_is_missed(whole, part):
    whole.parts[part].unlink()
    assert shortcomings(whole) == [f"there is no {whole.parts[part].relative_to(whole.root)}"]


@pytest.mark.parametrize("part", ["lab", "tests", "script", "solution"])
def test_a_stub_is_not_a_part(whole, part):
    path: Path = whole.parts[part]
    path.write_text("pass\n")
    assert len([weakness for weakness in shortcomings(whole) if weakness.startswith(f"{part}: ")]) == 3


def test_a_notebook_that_did_not_run_is_not_a_part(whole):
    cell = {"cell_type": "code", "source": "1", "execution_count": None, "outputs": []}
    whole.notebook.write_text(json.dumps({"cells": [cell], "metadata": {}}))
    assert len(shortcomings(whole)) == 5


def test_a_requirements_file_that_an_extra_names_is_missed(whole):
    lacking = Lesson(**{**vars(whole), "extras": ("nowhere",)})
    assert shortcomings(lacking) == ["there is no requirements-nowhere.txt"]
