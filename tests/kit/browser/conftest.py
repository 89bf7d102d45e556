"""A real headless Chromium, and JupyterLab over a workspace of the reference submission."""

import json
import os
import re
import signal
import subprocess
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from shardlab.grade.workspace import workspace
from shardlab.lab import lab_command
from shardlab.slides import find_chromium
from shardlab.syllabus import ROOT, lesson

# Without the services Chromium calls at start; as root its sandbox cannot start.
CHROMIUM_FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
MARK = "SHARDLAB_BROWSER_TEST"  # in the environment of every process that a test starts, so that none is overlooked


@pytest.fixture
def page(tmp_path: Path) -> Iterator:
    """A page of a fresh Chromium."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is missing: tools/install.sh browser")
    chromium = find_chromium()
    if chromium is None:
        pytest.skip("Chromium is missing: `shardlab doctor` says how to install it")
    with playwright.sync_playwright() as driver:
        context = driver.chromium.launch_persistent_context(
            tmp_path / "profile", executable_path=chromium, args=CHROMIUM_FLAGS, viewport={"width": 1280, "height": 900}
        )
        yield context.new_page()
        context.close()


@dataclass(frozen=True)
class Server:
    """A running JupyterLab."""

    url: str  # of the opened notebook, with token
    notebook: Path  # the file it edits
    process: subprocess.Popen
    mark: str

    def stop(self) -> None:
        """Ends it the way Ctrl-C does, twice: JupyterLab asks back on the first."""
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=30)

    def left_over(self, patience: float = 10) -> list[str]:
        """Command lines of processes it started that are still there `patience` seconds later."""
        deadline = time.monotonic() + patience
        while (left := _marked(self.mark)) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left


def _marked(mark: str) -> list[str]:
    left = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                left.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return left


@pytest.fixture
def jupyterlab(tmp_path: Path) -> Iterator[Server]:
    """JupyterLab on the notebook of lesson 1.3, its outputs stripped, over the reference submission."""
    with workspace(ROOT, ROOT / "solutions") as folder:
        notebook = folder / lesson("1.3").notebook.relative_to(ROOT)
        notebook.parent.mkdir(parents=True)
        notebook.write_text(json.dumps(_stripped(lesson("1.3").notebook)), encoding="utf-8")
        server = _start(folder, notebook, tmp_path / "jupyter.log")
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()


def _stripped(notebook: Path) -> dict:
    content = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        if cell["cell_type"] == "code":
            cell |= {"outputs": [], "execution_count": None}
    return content


def _start(folder: Path, notebook: Path, log: Path) -> Server:
    mark = uuid.uuid4().hex
    settings = folder / ".jupyter"  # the tester's own settings stay out of it
    environment = os.environ | {"PYTHONPATH": str(folder), "JUPYTER_CONFIG_DIR": str(settings), MARK: mark}
    command = [*lab_command(folder, notebook, port=None), "--no-browser"]
    with log.open("w") as file:
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file)
    try:
        url = _wait_for_url(process, log)
    except BaseException:
        process.kill()
        raise
    return Server(url, notebook, process, mark)


def _wait_for_url(process: subprocess.Popen, log: Path, patience: float = 60) -> str:
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and process.poll() is None:
        if match := re.search(r"http://127\.0\.0\.1:\d+/lab\S*", log.read_text()):
            return match.group()
        time.sleep(0.2)
    raise RuntimeError(f"JupyterLab did not start within {patience:.0f} s:\n{log.read_text()}")
