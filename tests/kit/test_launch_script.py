"""Lesson 1.4's script under real launchers: its faults are named, a dead rank comes back, two agents are two nodes."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from shardlab.grade.workspace import workspace
from shardlab.syllabus import ROOT, lesson

pytestmark = pytest.mark.slow  # every launch imports torch in an agent and in each rank
SECONDS = 120
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--log-dir", "log"]  # in the folder where it is started
SAID = {  # rank 1's mistake, what it called, and what the others wait in
    "skip": ("rank 1 called broadcast float32[1] at", "ranks 0, 2 called all_reduce float32[1024] at"),
    "shape": ("rank 1 called all_reduce float32[1000] at", "ranks 0, 2 called all_reduce float32[1024] at"),
    "order": ("rank 1 called broadcast float32[1] at", "ranks 0, 2 called all_reduce float32[1024] at"),
    "groups": ("rank 1 called new_group [1] at", "ranks 0, 2 called new_group [0, 2] at"),
}


@pytest.fixture(scope="module")
def script():
    """The script, in a folder with the labs of the reference submission."""
    with workspace(ROOT, ROOT / "solutions") as place:
        yield place / lesson("launch").script.relative_to(ROOT)


def start(command: list[str], script: Path, options: list[str], folder: Path, **variables: str) -> subprocess.Popen:
    environment = {**os.environ, "PYTHONPATH": str(script.parents[2]), "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(
        [*command, str(script), *options],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*processes: subprocess.Popen) -> tuple[list[int], str]:
    """Exit codes and all output; nobody outlives its deadline."""
    try:
        text = "".join(process.communicate(timeout=SECONDS)[0] for process in processes)
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], text


@pytest.mark.parametrize("fault", SAID)
def test_a_fault_is_named_with_call_file_and_line(fault, script, tmp_path):
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "3"]
    codes, text = finish(start(command, script, ["--inject", fault, "--deadline", "2"], tmp_path))
    assert codes == [1] and "exitcode  : 3" in text, text[-3000:]
    (line,) = [line for line in text.splitlines() if "hang watch: " in line]
    assert all(words in line for words in SAID[fault]) and line.count("run_launch.py:") == 2, line


def test_a_slow_rank_is_named_and_waited_for(script, tmp_path):
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2"]
    codes, text = finish(start(command, script, ["--inject", "slow", "--deadline", "2"], tmp_path))
    assert codes == [0] and "rank 1 is slow: rank 0 waits for it in all_reduce" in text, text[-3000:]


def test_a_dead_rank_comes_back_with_the_others(script, tmp_path):
    command = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", "--monitor-interval", "0.1"]
    codes, text = finish(start(command, script, ["--inject", "crash"], tmp_path))
    assert codes == [0] and "attempt 1" in text and "came to its end" in text, text[-3000:]


def test_two_agents_are_two_nodes(script, tmp_path):
    with socket.create_server(("localhost", 0)) as free:
        port = free.getsockname()[1]
    meet = ["--rdzv-id", "test", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}"]
    command = [*TORCHRUN, "--nnodes", "2", "--nproc-per-node", "1", *meet]
    options = ["--op", "all_reduce", "--max-bytes", "4K"]
    codes, text = finish(*(start(command, script, options, tmp_path) for _ in range(2)))
    assert codes == [0, 0], text[-3000:]
    assert "rank 0 of 2 (torchrun, local rank 0 of 1" in text and "rank 1 of 2 (torchrun, local rank 0 of 1" in text


def test_the_tasks_of_slurm_find_each_other(script, tmp_path):
    """Variables as srun sets them, the node being this one."""
    job = {"SLURM_NTASKS": "2", "SLURM_NODELIST": "localhost", "SLURM_JOB_ID": str(os.getpid())}
    options = ["--op", "all_reduce", "--max-bytes", "4K"]
    tasks = [
        start([sys.executable], script, options, tmp_path, SLURM_PROCID=rank, SLURM_LOCALID=rank, **job)
        for rank in "01"
    ]
    codes, text = finish(*tasks)
    assert codes == [0, 0] and "rank 1 of 2 (Slurm, local rank 1 of 2" in text, text[-3000:]
    assert text.count("Every result was right") == 1, text


def test_what_is_wrong_with_the_launch_is_one_line(script, tmp_path):
    codes, text = finish(start([sys.executable], script, [], tmp_path, SLURM_PROCID="2", SLURM_LOCALID="0"))
    assert codes == [2] and "SLURM_NTASKS is missing" in text and "Traceback" not in text, text
