"""The doctor answers for everything, survives what is broken, and gives commands to copy."""

import io
import socket

import pytest
from rich.console import Console

from shardlab.doctor import CHECKS, Check, Finding, core, examine, machine, programs, report


def told(*answers: tuple[Check, Finding]) -> tuple[bool, str]:
    console = Console(file=io.StringIO(), width=100)
    return report(answers, console), console.file.getvalue()


def check(name: str, required: bool) -> Check:
    return Check(name, "everything", lambda: Finding("works", ""), required)


@pytest.mark.slow
def test_this_machine_runs_the_course():
    answers = list(examine())
    assert [asked.name for asked, _ in answers] == [asked.name for asked in CHECKS]
    assert [asked.name for asked, finding in answers if asked.required and finding.state == "missing"] == []


def test_a_check_that_breaks_does_not_stop_the_others():
    def breaks() -> Finding:
        raise RuntimeError("odd machine")

    answers = list(examine([Check("odd", "x", breaks), check("next", False)]))
    assert answers[0][1] == Finding("missing", "RuntimeError: odd machine")
    assert answers[1][1].state == "works"


def test_what_is_required_and_missing_fails():
    good, text = told((check("torch", True), Finding("missing", "no module", "pip install torch")))
    assert not good
    assert "pip install torch" in text
    assert "The course does not run here yet: mend torch first." in text


def test_what_only_some_need_does_not_fail():
    good, text = told((check("Slurm", False), Finding("missing", "no sbatch [x]", "apt-get install slurm-wlm")))
    assert good
    assert "no sbatch [x]" in text  # brackets are no markup
    assert "apt-get install slurm-wlm" in text


def test_a_package_that_differs_from_its_pin_is_named(tmp_path):
    (tmp_path / "requirements.txt").write_text("# core\nrich==0.0.1\nno-such-package==1.0\n")
    finding = core.packages(tmp_path / "requirements.txt")
    assert finding.state == "limited"
    assert "rich is " in finding.found
    assert "no-such-package is missing, pinned 1.0" in finding.found


def test_a_taken_port_is_seen(monkeypatch):
    with socket.create_server(("", 0)) as taken:
        monkeypatch.setattr(machine, "TORCHRUN_PORT", taken.getsockname()[1])
        assert machine.ports().state == "limited"


@pytest.mark.parametrize(
    "ask", [programs.slurm, programs.bubblewrap, programs.slides, programs.chromium, programs.compiler, programs.links]
)
def test_on_a_bare_machine_every_program_comes_with_its_command(monkeypatch, ask):
    monkeypatch.setattr("shutil.which", lambda name: "/usr/bin/apt-get" if name == "apt-get" else None)
    finding = ask()
    assert finding.state == "missing"
    assert "apt-get install -y " in finding.fix


def test_denied_namespaces_come_with_the_command_that_allows_them(monkeypatch):
    monkeypatch.setattr(programs, "_failure", lambda *command: "unshare: write failed: Operation not permitted")
    finding = programs.namespaces()
    assert finding.state == "missing"
    assert finding.fix
