"""tools/install.sh with pythons that only pretend, so that every way an install can go wrong is tried in no time."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from shardlab.syllabus import ROOT

# Answers the script's questions as told by variables, notes what it is asked to install, and copies itself as .venv.
PRETENDER = """#!/bin/sh
case "$*" in
    *version_info*) [ -z "$TOO_OLD" ] ;;
    *python_version*) echo 3.9.2 ;;
    *ensurepip*) [ -z "$NO_ENSUREPIP" ] ;;
    "-m venv --clear .venv") echo venv >>asked; rm -rf .venv; mkdir -p .venv/bin && cp "$0" .venv/bin/python ;;
    "-m pip install"*)
        echo "$@" >>asked
        if [ -n "$SLOW" ]; then echo >slow; sleep 60; fi
        [ -z "$PIP_SAYS" ] || { echo "$PIP_SAYS"; exit 1; }
        ;;
esac
"""


@pytest.fixture
def checkout(tmp_path):
    """A checkout with the script, and a pretending python."""
    (tmp_path / "tools").mkdir()
    shutil.copy(ROOT / "tools" / "install.sh", tmp_path / "tools")
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    (tmp_path / "requirements.txt").write_text("torch==2.13.0\n")
    (tmp_path / "requirements-extra.txt").write_text("more==1.0\n")
    (tmp_path / "pretender").write_text(PRETENDER)
    (tmp_path / "pretender").chmod(0o755)
    return tmp_path


def environment(checkout: Path, **settings: str) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "PYTHON": str(checkout / "pretender"), **settings}


def install(checkout: Path, *tracks: str, **settings: str) -> subprocess.CompletedProcess:
    command = ["bash", checkout / "tools" / "install.sh", *tracks]
    return subprocess.run(command, env=environment(checkout, **settings), capture_output=True, text=True, timeout=60)


def asked(checkout: Path) -> list[str]:
    """What the pretender was told to make since the last look."""
    log = checkout / "asked"
    words = [line.partition("--retries 2 ")[2] or line for line in log.read_text().splitlines()] if log.exists() else []
    log.unlink(missing_ok=True)
    return words


CORE = ["venv", "-r requirements.txt -e ."]


def test_the_first_run_installs_and_the_second_does_nothing(checkout):
    assert install(checkout).returncode == 0
    assert asked(checkout) == CORE
    done = install(checkout)
    assert (done.returncode, done.stdout, done.stderr, asked(checkout)) == (0, "", "", [])


def test_an_interrupted_install_is_rebuilt(checkout):
    command = ["bash", checkout / "tools" / "install.sh"]
    running = subprocess.Popen(
        command, env=environment(checkout, SLOW="1"), stderr=subprocess.DEVNULL, start_new_session=True
    )
    deadline = time.monotonic() + 20
    while not (checkout / "slow").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait()
    assert asked(checkout) == CORE
    assert install(checkout).returncode == 0
    assert asked(checkout) == CORE


def test_changed_pins_update_in_place(checkout):
    install(checkout)
    asked(checkout)
    (checkout / "requirements.txt").write_text("torch==2.14.0\n")
    assert install(checkout).returncode == 0
    assert asked(checkout) == CORE[1:]
    assert install(checkout).returncode == 0
    assert asked(checkout) == []


def test_a_moved_checkout_is_rebuilt(checkout):
    install(checkout)
    moved = checkout.rename(checkout.with_name("moved"))
    asked(moved)
    assert install(moved).returncode == 0
    assert asked(moved)


def test_an_environment_whose_python_is_gone_is_rebuilt(checkout):
    install(checkout)
    asked(checkout)
    (checkout / ".venv" / "bin" / "python").unlink()
    assert install(checkout).returncode == 0
    assert asked(checkout) == CORE


def test_a_track_comes_on_top_of_the_core_once(checkout):
    assert install(checkout, "extra").returncode == 0
    assert asked(checkout) == [*CORE, "-r requirements.txt -r requirements-extra.txt"]
    assert install(checkout, "extra").returncode == 0
    assert install(checkout).returncode == 0
    assert asked(checkout) == []


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"TOO_OLD": "1"}, "Python 3.11 or newer is needed, and {python} is 3.9.2; install one"),
        ({"PYTHON": "no-such-python"}, "Python 3.11 or newer is needed; install one"),
        ({"NO_ENSUREPIP": "1"}, "{python} lacks ensurepip and cannot make a virtual environment; add it"),
        (
            {"PIP_SAYS": "Temporary failure in name resolution"},
            "the package index cannot be reached; check the network",
        ),
        ({"PIP_SAYS": "OSError: No space left on device"}, "the disk is full; free 3 GiB"),
        ({"PIP_SAYS": "ERROR: odd"}, "the packages could not be installed; run the same command again"),
    ],
)
def test_what_is_wrong_is_said_in_one_sentence(checkout, settings, expected):
    done = install(checkout, **settings)
    assert done.returncode == 2
    sentence = [line for line in done.stderr.splitlines() if not line.startswith("Installing")]
    assert len(sentence) == 1
    assert sentence[0].startswith("shardlab: " + expected.format(python=checkout / "pretender"))
    asked(checkout)
    assert install(checkout).returncode == 0  # and once it is mended, all is well
    assert asked(checkout) == CORE


def test_an_unknown_track_is_said(checkout):
    done = install(checkout, "nowhere")
    assert done.returncode == 2
    assert (
        "shardlab: there is no requirements-nowhere.txt here; there is: requirements-extra.txt requirements.txt"
        in done.stderr
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_checkout_that_may_not_be_written_is_said(checkout):
    checkout.chmod(0o555)
    try:
        done = install(checkout)
    finally:
        checkout.chmod(0o755)
    assert done.returncode == 2
    assert "is not writable" in done.stderr
