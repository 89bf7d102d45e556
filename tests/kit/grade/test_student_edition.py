"""The student edition: built into a new folder, it holds no solution, and grades what a student writes there."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from shardlab import cli
from shardlab.bad_input import BadInput
from shardlab.grade import student_edition
from shardlab.grade.release import BEGIN, END
from shardlab.grade.student_edition import write_student_edition
from shardlab.syllabus import ROOT, lesson, lessons, read

LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
WINDOW = 5  # lines in a row of a solution; fewer may stand on a slide, or by accident in a test


@pytest.fixture(scope="module")
def edition(tmp_path_factory) -> Path:
    into = tmp_path_factory.mktemp("student") / "shardlab"
    write_student_edition(ROOT, into)
    return into


def run_there(edition: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in the edition, with its kit and not ours."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(edition), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "120"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=edition, env=environment, capture_output=True, text=True, timeout=600)


def shardlab(edition: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_there(edition, "-c", "from shardlab.cli import main; main()", *arguments)


def test_what_is_not_for_students_is_not_there(edition):
    for name in ("solutions", "benchmarks", ".git", ".ci", "CONTRIBUTING.md", "tests/kit", ".venv", "results"):
        assert not (edition / name).exists()
    assert not [
        path for path in edition.rglob("*") if path.is_symlink() or path.name in ("__pycache__", "node_modules")
    ]


def test_a_ready_lesson_is_whole_and_a_planned_one_is_its_lab_at_most(edition):
    for day in read(edition / "syllabus.toml"):
        for each in day.lessons:
            present = {name for name, path in each.parts.items() if path.exists()}
            if each.ready:
                assert present == {"slides", "notebook", "lab", "tests", "script"}
                assert each.notebook.read_bytes() == lesson(each.id).notebook.read_bytes()
            else:
                assert present <= {"lab"}


def test_labs_are_untouched_whatever_became_of_those_in_the_checkout(tmp_path, edition):
    checkout = tmp_path / "course"
    shutil.copytree(edition, checkout)
    shutil.copytree(ROOT / "solutions", checkout / "solutions")
    for page in (ROOT / "labs").rglob("README.md"):
        shutil.copy(page, checkout / page.relative_to(ROOT))
    for edit in tomllib.loads(student_edition._EDITS.read_text())["edit"]:
        shutil.copy(ROOT / edit["file"], checkout / edit["file"])
    first = lessons(ready=True)[0].lab.relative_to(ROOT)
    (checkout / first).write_text("mine = 1\n")
    (checkout / "labs" / "link").symlink_to(ROOT / "solutions")
    (checkout / "grades").mkdir()
    (checkout / "grades" / "secret.csv").write_text("")
    write_student_edition(checkout, tmp_path / "again")
    again = _files(tmp_path / "again")
    assert again == _files(edition)
    assert b"raise NotAttempted(" in again[str(first)]


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_no_file_holds_the_code_of_a_solution(edition):
    files = [path for path in edition.rglob("*") if path.suffix in (".py", ".ipynb", ".md", ".toml")]
    texts = {path: _code(path.read_text(encoding="utf-8")) for path in files}
    for solution in sorted((ROOT / "solutions").rglob("*.py")):
        for lines in _blocks(solution.read_text(encoding="utf-8")):
            for at in range(len(lines) - WINDOW + 1):
                window = "\n".join(lines[at : at + WINDOW])
                holders = [str(path.relative_to(edition)) for path, text in texts.items() if window in text]
                assert not holders, f"{holders} hold of {solution.name}:\n{window}"


def _blocks(source: str) -> list[list[str]]:
    bodies = re.findall(rf"{BEGIN}\n(.*?){END}", source, re.DOTALL)
    return [_code(body).splitlines() for body in bodies]


def _code(text: str) -> str:
    """Without indentation and blank lines; of a notebook the lines that its strings hold."""
    text = text.replace("\\n", "\n").replace('\\"', '"')
    return "\n".join(line for raw in text.splitlines() if (line := raw.strip().removeprefix('"').removesuffix('",')))


def test_every_link_command_and_import_leads_somewhere(edition):
    targets = set(re.findall(r"^([a-z]+):", (edition / "Makefile").read_text(), re.MULTILINE))
    pages = [edition / "README.md", *(edition / "labs").rglob("README.md")]
    for page in pages:
        text = re.sub("<!--.*?-->", "", page.read_text())
        assert "CONTRIBUTING" not in text
        assert "solutions" not in text.replace("labs made from solutions", "")
        for link in LINK.findall(text):
            assert (page.parent / link).exists(), f"{page}: {link}"
        for path in re.findall(r"(?:python|torchrun .*?|open|pytest) ((?:labs|tests|benchmarks)/[\w./]+\.py)", text):
            assert (edition / path).is_file(), f"{page}: {path}"
        assert set(re.findall(r"\bmake ([a-z]+)\b(?= +#|`)", text)) <= targets
    for source in (edition / "labs").rglob("*.py"):
        for module in re.findall(r"^from (labs[\w.]*) import", source.read_text(), re.MULTILINE):
            file = edition / Path(*module.split("."))
            assert file.is_dir() or file.with_suffix(".py").is_file(), f"{source}: {module}"


def test_make_test_grades_the_labs(edition):
    if shutil.which("make") is None:
        pytest.skip("make is missing")
    plan = ["make", "--no-print-directory", "-n", "test"]
    said = subprocess.run(plan, cwd=edition, capture_output=True, text=True, timeout=60)
    assert said.stdout.splitlines()[-1] == ".venv/bin/shardlab test"
    listed = subprocess.run(["make", "help"], cwd=edition, capture_output=True, text=True, timeout=60).stdout
    assert "grade your labs" in listed
    assert "release" not in listed


@pytest.mark.slow
def test_an_untouched_lab_has_no_points_there_and_a_filled_one_has(edition):
    untouched = shardlab(edition, "test", "1.1")
    assert untouched.returncode == 0, untouched.stdout + untouched.stderr
    assert re.search(r"^ all +0 of \d+", untouched.stdout, re.MULTILINE)
    assert "passed" not in untouched.stdout.splitlines()[-1]

    first = lesson("1.1")
    lab = edition / first.lab.relative_to(ROOT)
    before = lab.read_bytes()
    shutil.copy(first.solution, lab)
    try:
        chosen = ("-k", "days")
        filled = run_there(edition, "-m", "pytest", "-q", "-p", "no:nbval", str(first.tests.relative_to(ROOT)), *chosen)
    finally:
        lab.write_bytes(before)
    assert filled.returncode == 0, filled.stdout + filled.stderr
    assert re.search(r"training_days +[1-9]\d* of ", filled.stdout), filled.stdout


def test_an_edition_is_never_released_from(edition, tmp_path):
    refused = shardlab(edition, "release")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr == (
        "shardlab: there is no solutions/ here, as in every student edition: run this in the full course\n"
    )
    with pytest.raises(BadInput, match="there is no solutions/ here"):
        write_student_edition(edition, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "mine").mkdir()
    file = tmp_path / "mine" / "notes"
    file.write_text("mine")
    for place in (tmp_path / "mine", file):
        with pytest.raises(BadInput, match="is not an empty folder: name a new one"):
            write_student_edition(ROOT, place)
    assert [path.name for path in tmp_path.rglob("*")] == ["mine", "notes"]
    assert file.read_text() == "mine"


def test_a_text_that_changed_under_its_edit_is_said(tmp_path, monkeypatch):
    edits = tmp_path / "edits.toml"
    edits.write_text('[[edit]]\nfile = "README.md"\nold = "words that never stood there"\nnew = ""\n')
    monkeypatch.setattr(student_edition, "_EDITS", edits)
    with pytest.raises(BadInput, match=r"README.md does not hold once what edits.toml changes for students: 'words"):
        write_student_edition(ROOT, tmp_path / "edition")
    assert not (tmp_path / "edition").exists()


def test_the_command_says_what_it_wrote(tmp_path, monkeypatch, capsys):
    place = tmp_path / "edition"
    monkeypatch.setattr(sys, "argv", ["shardlab", "release", "--student-edition", str(place)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    printed = capsys.readouterr()
    assert (left.value.code, printed.err) == (0, "")
    lines = printed.out.splitlines()
    assert f"wrote {place}/labs: {len([p for p in (place / 'labs').rglob('*') if p.is_file()])} files" in lines
    assert lines[-1].startswith("Left out: solutions, ")

    monkeypatch.setattr(sys, "argv", ["shardlab", "release", "--check", "--student-edition", str(place)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert capsys.readouterr().err == "shardlab: --check compares, --student-edition writes: give one of them\n"
