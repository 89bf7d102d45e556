"""A learner's way in: JupyterLab in a real browser runs the notebook of lesson 1.3 to its end."""

import json
import time
from pathlib import Path

import pytest

PATIENCE = 180  # seconds; the first open of JupyterLab takes long on a small machine


@pytest.mark.slow
def test_the_notebook_of_lesson_1_3_runs_to_its_end(page, jupyterlab, tmp_path):
    page.goto(jupyterlab.url, timeout=PATIENCE * 1000)
    page.wait_for_selector(".jp-Notebook .jp-Cell", timeout=PATIENCE * 1000)
    page.get_by_text("| Idle").wait_for(timeout=PATIENCE * 1000)  # "Python 3 (ipykernel) | Idle" in the status bar
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    try:
        cells = _wait_until_all_ran(page, jupyterlab.notebook)
    finally:
        page.screenshot(path=tmp_path / "jupyterlab.png")

    errors = [output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"]
    assert not errors, "\n".join(errors[0]["traceback"])
    assert any("image/png" in output.get("data", {}) for cell in cells for output in cell["outputs"]), "no picture"

    jupyterlab.stop()
    assert jupyterlab.left_over() == []


def _wait_until_all_ran(page, notebook: Path) -> list[dict]:
    """Saves until every code cell on disk has its number, or one has failed; returns the code cells."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        page.keyboard.press("Control+s")
        page.wait_for_timeout(1000)
        cells = [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]
        failed = any(output["output_type"] == "error" for cell in cells for output in cell["outputs"])
        if failed or all(cell["execution_count"] for cell in cells if "".join(cell["source"]).strip()):
            return cells
    ran = sum(bool(cell["execution_count"]) for cell in cells)
    raise AssertionError(f"{ran} of {len(cells)} cells ran within {PATIENCE} s")
