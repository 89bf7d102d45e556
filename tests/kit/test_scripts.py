"""Every ready lesson's script runs: under plain python and torchrun, with the reference solutions, at a small size."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.grade.workspace import workspace
from shardlab.syllabus import ROOT, Lesson, lessons

SMALL = {  # options that keep a run to some seconds; a new lesson names its own
    "scaling_math": ["--model", "llama-1b", "--gpus", "8"],
    "single_gpu": ["--sequence", "32", "--hidden", "32", "--layers", "1", "--steps", "2", "--impl", "mine"],
    "collectives": ["--max-bytes", "64K"],
    "launch": ["--max-bytes", "64K", "--op", "all_reduce", "all_gather"],
    "ddp": ["--impl", "mine", "torch", "accelerate", "--batch", "48", "--steps", "2", "--epochs", "1"],
    "zero": ["--hidden", "128", "--layers", "4", "--steps", "4"],
    "fsdp": ["--steps", "4", "--every", "2", "--compare-steps", "3", "--rows", "4", "--hidden", "64", "--layers", "1"],
    "data_parallel_workshop": ["--impl=mine", "--ranks", "1", "3", "--hidden=48", "--layers=2", "--steps=1"],
    "tensor_parallel": ["--layers", "1", "--hidden", "96", "--batch", "2", "--sequence", "32", "--steps", "3"],
    "pipeline": ["--layers", "4", "--steps", "2", "--micro-batches", "1", "3", "--batch-ms", "30"],
    "context": ["--sequence", "64", "--budget-mib", "6", "--steps", "1", "--layers", "1"],
    "mixture_of_experts": ["--layers=1", "--hidden=32", "--sequence=16", "--steps=4", "--capacity=1"],
    "hybrid": ["--layers=2", "--hidden=32", "--sequence=16", "--steps=3", "--gpus=8", "--model=llama-8b"],
}
READY = [pytest.param(lesson, id=lesson.slug) for lesson in lessons(ready=True)]
SECONDS = 120


@pytest.fixture(scope="module")
def labs_root():
    """A folder with the labs of the reference submission."""
    with workspace(ROOT, ROOT / "solutions") as place:
        yield place


def run(folder: Path, command: list[str], labs_root: Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(labs_root), "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS)


def script_of(lesson: Lesson, labs_root: Path) -> str:
    return str(labs_root / lesson.script.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize("lesson", READY)
@pytest.mark.parametrize("ranks", [1, 3], ids=["python", "torchrun 3"])
def test_the_script_runs_and_writes_its_results(lesson, ranks, labs_root, tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    torchrun += ["--log-dir", str(tmp_path / "log")]  # else its folder stays among the machine's temporary ones
    launcher = [sys.executable] if ranks == 1 else torchrun
    done = run(tmp_path, [*launcher, script_of(lesson, labs_root), *SMALL[lesson.slug]], labs_root)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    record = json.loads((tmp_path / "results" / f"{lesson.slug}.json").read_text())
    assert record["topic"] == lesson.slug and record["data"]
    assert list((tmp_path / "results").glob("*.svg")), "a script draws at least one figure"


@pytest.mark.slow
@pytest.mark.parametrize("lesson", READY)
def test_the_script_of_a_lab_not_attempted_says_so_in_one_line(lesson, tmp_path):
    done = run(tmp_path, [sys.executable, str(lesson.script)], ROOT)
    if done.returncode == 0:
        pytest.skip("this checkout's lab is written")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"labs/{lesson.day}/{lesson.slug}.py" in done.stderr


@pytest.mark.parametrize("lesson", READY)
def test_every_script_has_a_small_size_here(lesson):
    assert lesson.slug in SMALL, f"name options that keep run_{lesson.slug}.py short"
