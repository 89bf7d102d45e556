"""The command line answers at once, and bad input with one sentence on stderr, exit code 2 and no traceback."""

import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab import cli


@pytest.fixture
def refused(monkeypatch, capfd):
    """Runs a command that must be refused; returns what it says on stderr."""

    def run(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["shardlab", *arguments])
        with pytest.raises(SystemExit) as left:
            cli.main()
        printed = capfd.readouterr()
        assert left.value.code == 2
        assert printed.out == ""
        return printed.err

    return run


def is_one_sentence(text: str) -> bool:
    return text.startswith("shardlab: ") and text.count("\n") == 1


def test_help_lists_the_commands_without_importing_torch():
    program = (
        "import sys, shardlab.cli as cli\ntry: cli.main()\nfinally: print('torch' in sys.modules, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True)
    assert done.stderr == "False\n"
    for name in ("tour", "lab", "test", "status", "doctor", "slides", "release"):
        assert f" {name} " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["test", "colectives"], 'no lesson "colectives"; did you mean 1.3 collectives?'),
        (["lab", "1.9"], 'no lesson "1.9"; did you mean 1.4 launch?'),
        (["test", "7.4"], "lesson 7.4 jax_parallelism is planned, not written yet; ready: "),
        (["test", "1.3", "--submission", "nowhere"], "does not exist"),
        (["test", "1.3", "--submission", "slides"], "mirrors nothing of labs/"),
    ],
)
def test_bad_input_is_one_sentence(refused, arguments, expected):
    said = refused(*arguments)
    assert is_one_sentence(said)
    assert expected in said


def test_a_mistyped_command_gets_the_nearest_suggested(refused):
    assert "Did you mean 'test'" in refused("tets")


def test_a_port_in_use_is_one_sentence(refused):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused("lab", "--port", str(port))
    assert is_one_sentence(said)
    assert f"port {port} is in use" in said


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.EACCES, "results may not be written; make it yours"), (errno.ENOSPC, "the disk is full; free some room")],
)
def test_a_refusing_disk_is_one_sentence(monkeypatch, capsys, code, expected):
    def fails():
        raise OSError(code, os.strerror(code), "results")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(SystemExit) as left:
        cli.main()
    assert left.value.code == 2
    assert f"shardlab: {expected}" in capsys.readouterr().err


def test_an_error_of_ours_keeps_its_traceback(monkeypatch):
    def fails():
        raise OSError(errno.EBADF, "a bug")

    monkeypatch.setattr(cli, "app", fails)
    with pytest.raises(OSError, match="a bug"):
        cli.main()


def test_release_check_says_what_has_drifted(monkeypatch, capsys):
    from shardlab.grade import release

    monkeypatch.setattr(release, "drifted", lambda root: [Path("labs/day1_one_gpu_to_many/collectives.py")])
    with pytest.raises(cli.typer.Exit) as left:
        cli.release(check=True)
    assert left.value.exit_code == 1
    assert "labs/day1_one_gpu_to_many/collectives.py is not what `make release` writes" in capsys.readouterr().err
