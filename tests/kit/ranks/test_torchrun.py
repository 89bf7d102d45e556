"""A rank ends with the torchrun that started it, whatever happens to that."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

SCRIPT = """
import os, time
from shardlab.ranks import torchrun_ranks
with torchrun_ranks():
    os.write(1, f"{os.getpid()}\\n".encode())
    time.sleep(120)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a child only on Linux")
def test_ranks_do_not_outlive_a_killed_torchrun(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--log-dir", str(tmp_path / "log")]
    command = [*torchrun, "--standalone", "--nproc-per-node=2", str(script)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env) as agent:
        ranks = [psutil.Process(int(agent.stdout.readline())) for _ in range(2)]
        agent.send_signal(signal.SIGKILL)
        try:
            agent.communicate(timeout=10)  # the ranks hold the other end of the pipe while they live
        except subprocess.TimeoutExpired:
            for rank in ranks:
                rank.kill()
            raise
