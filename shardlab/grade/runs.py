"""Where a pytest run's labs come from: the checkout itself, or the workspace of the folder after `--submission`.

Ranks and notebook kernels import ``labs`` from there. Kernels, and whatever else the run starts, learn of it from
PYTHONPATH; workers of pytest-xdist share the workspace of the process that started them.
"""

import os
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shardlab.grade.course import Course
from shardlab.grade.workspace import SubmissionError, submitted_files, workspace

COURSE = pytest.StashKey[Course]()
LABS_ROOT = pytest.StashKey[Path]()  # the folder that holds the labs/ to grade
BAD_INPUT = 2
NBVAL_DEFAULT_SECONDS, CELL_SECONDS = 2000, 120


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    config.stash[COURSE] = Course(config.rootpath)
    cleanup = ExitStack()
    config.add_cleanup(cleanup.close)
    try:
        config.stash[LABS_ROOT] = _open_labs(config, cleanup)
    except (SubmissionError, OSError) as error:
        print(f"shardlab: {error}", file=sys.stderr)
        return BAD_INPUT
    _put_first_on_pythonpath(config.stash[LABS_ROOT], cleanup)
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Safer defaults of two plugins a run may use."""
    if config.getoption("dist", "no") == "load":  # pytest-xdist would scatter the cells of one notebook over workers
        config.option.dist = "loadfile"
    if config.getoption("nbval_cell_timeout", None) == NBVAL_DEFAULT_SECONDS:  # which a dead kernel waits out
        config.option.nbval_cell_timeout = CELL_SECONDS


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """A worker of pytest-xdist starts: tell it where the labs are."""
    node.workerinput["labs_root"] = str(node.config.stash[LABS_ROOT])


def pytest_report_header(config: pytest.Config) -> str | None:
    if (submission := submission_folder(config)) is None:
        return None
    files = ", ".join(map(str, submitted_files(config.rootpath, submission)))
    return f"submission: {submission} ({files})"


def submission_folder(config: pytest.Config) -> Path | None:
    """The folder after `--submission`, as an absolute path."""
    given = config.getoption("submission")
    return None if given is None else config.invocation_params.dir / Path(given).expanduser()


def _open_labs(config: pytest.Config, cleanup: ExitStack) -> Path:
    if hasattr(config, "workerinput"):
        return Path(config.workerinput["labs_root"])
    if (submission := submission_folder(config)) is None:
        return config.rootpath
    return cleanup.enter_context(workspace(config.rootpath, submission))


def _put_first_on_pythonpath(folder: Path, cleanup: ExitStack) -> None:
    before = os.environ.get("PYTHONPATH")
    cleanup.callback(_set_pythonpath, before)
    _set_pythonpath(str(folder) if before is None else f"{folder}{os.pathsep}{before}")


def _set_pythonpath(value: str | None) -> None:
    if value is None:
        os.environ.pop("PYTHONPATH", None)
    else:
        os.environ["PYTHONPATH"] = value
