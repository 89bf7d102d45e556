"""Every table, command and link of the README is real."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from shardlab.bad_input import BadInput
from shardlab.cli import app
from shardlab.syllabus import ROOT, lesson
from shardlab.upkeep import readme_is_fresh, refresh_readme

PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "slides" / "README.md",
    ROOT / "labs" / "README.md",
    *sorted((ROOT / "labs").glob("day*/README.md")),
]
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_table_of_lessons_is_what_the_syllabus_says():
    assert readme_is_fresh(ROOT), "run `make release`"


def test_the_table_is_rewritten_between_its_markers_only(tmp_path):
    (tmp_path / "syllabus.toml").write_bytes((ROOT / "syllabus.toml").read_bytes())
    (tmp_path / "README.md").write_text((ROOT / "README.md").read_text().replace("| 1.3 |", "| 1.x |"))
    assert refresh_readme(tmp_path)
    assert (tmp_path / "README.md").read_text() == (ROOT / "README.md").read_text()
    assert not refresh_readme(tmp_path)


def test_lost_markers_are_said(tmp_path):
    (tmp_path / "syllabus.toml").write_bytes((ROOT / "syllabus.toml").read_bytes())
    (tmp_path / "README.md").write_text("# Shardlab\n")
    with pytest.raises(BadInput, match="lost its markers"):
        refresh_readme(tmp_path)


def _commands() -> list[str]:
    """Every command on the pages: lines of bash blocks, and inline code that starts like one."""
    found = []
    for page in PAGES:
        text = page.read_text()
        for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
            lines = block.replace("\\\n", " ").splitlines()
            found += [line.partition(" # ")[0].strip() for line in lines]
        found += re.findall(r"`((?:make|shardlab|pytest|torchrun) [^`]+)`", text)
    return sorted({command for command in found if command})


@pytest.mark.parametrize("command", [command for command in _commands() if command.startswith("make ")])
def test_a_make_command_has_its_target(command):
    words = [word for word in shlex.split(command)[1:] if "=" not in word]
    assert words
    assert set(words) <= TARGETS


@pytest.mark.parametrize("command", [command for command in _commands() if command.startswith("shardlab ")])
def test_a_shardlab_command_is_understood(command):
    """Parsed by the command line itself; `--help` at the end stops it before it does anything."""
    words = shlex.split(command)[1:]
    done = CliRunner().invoke(app, [*words, "--help"])
    assert done.exit_code == 0, done.output
    for word in words[1:]:
        assert not word.startswith("--") or word in done.output
        if re.fullmatch(r"\d\.\d", word):
            assert lesson(word).ready


@pytest.mark.parametrize("command", [command for command in _commands() if re.search(r"\.py\b", command)])
def test_a_script_or_test_that_is_named_exists(command):
    for path in re.findall(r"[\w./]+\.py\b", command):
        assert (ROOT / path).is_file()


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_links_lead_somewhere(page: Path):
    for link in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
        assert (page.parent / link).exists(), f"{link} of {page.relative_to(ROOT)}"


def test_every_target_is_described():
    described = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"make ([a-z]+)", described)) == TARGETS - {"ready"}


@pytest.mark.parametrize(
    ("file", "words"), [("LICENSE", "MIT License"), ("LICENSE-TEXT", "Attribution 4.0 International")]
)
def test_the_licences_are_there(file, words):
    assert words in (ROOT / file).read_text()
