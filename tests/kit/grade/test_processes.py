"""Whole pytest runs in processes of their own: workers share the workspace, and nothing is left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow  # each run imports torch, and so do its ranks


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """Where runs put their temporary folders; the variable marks their processes too."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


def left_behind(temporary: Path) -> list[str]:
    """Workspaces that exist, and processes that run, because of runs with `temporary` in their environment."""
    found = [str(path) for path in temporary.glob("shardlab-*")]
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get("TMPDIR", "").startswith(str(temporary)):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:  # gone meanwhile, or somebody else's
            continue
    return found


def test_workers_share_one_workspace_and_the_points_add_up(course, temporary):
    course.write(
        "tests/test_shared.py",
        f"""
        from pathlib import Path

        def test_one_workspace(labs_root):
            assert list(Path({str(temporary)!r}).glob("shardlab-*/labs")) == [labs_root / "labs"]
        """,
    )
    run = course.pytester.runpytest_subprocess("-p", "no:nbval", "-n", "2", course.submit())
    run.assert_outcomes(passed=8)
    run.stdout.fnmatch_lines(
        ["*double*3 of 3*done*", "*all_sum*5 of 5*done*", "*Average*3 of 3*done*", "*all*11 of 11*"]
    )
    assert left_behind(temporary) == []


def test_workers_report_what_is_not_attempted(course, temporary):
    run = course.pytester.runpytest_subprocess("-p", "no:nbval", "-n", "2", "-rs")
    run.assert_outcomes(skipped=7)
    run.stdout.fnmatch_lines(
        ["*all*0 of 11*", "SKIPPED*sums.py:9: not attempted: open labs/day1_small/sums.py (double)*"]
    )
    assert left_behind(temporary) == []


@pytest.mark.parametrize("workers", [0, 2])
def test_ctrl_c_leaves_nothing(course, temporary, workers):
    course.submit(
        """
        import time

        def all_sum(tensor):
            open("reached", "w").close()
            while True:  # works, and never ends: no deadlock to be found
                sum(range(1000))
        """
    )
    command = [sys.executable, "-m", "pytest", "-p", "no:nbval", f"-n{workers}", "--submission=submission"]
    run = subprocess.Popen(command, cwd=course.root, stdout=subprocess.DEVNULL, start_new_session=True)
    deadline = time.monotonic() + 60
    while not (course.root / "reached").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert left_behind(temporary) != []
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does: to the run and its workers
    assert run.wait(20) == 2
    assert left_behind(temporary) == []
