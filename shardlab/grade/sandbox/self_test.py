"""The escape probes on a real sandbox: what `shardlab grade` does first, and `shardlab grade --self-test` shows."""

from __future__ import annotations

import os
import secrets
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from shardlab.bad_input import BadInput
from shardlab.grade.sandbox.level import Level
from shardlab.grade.sandbox.limits import Limits
from shardlab.grade.sandbox.probes import Outside, try_all
from shardlab.grade.sandbox.sandbox import open_sandbox
from shardlab.ranks.pool import RankPool
from shardlab.syllabus import ROOT

SECRET_VARIABLE = "SHARDLAB_SELF_TEST"
PROBE_SECONDS = 60
FEW = Limits(processes=96)  # reached in a moment


def escapes(level: Level) -> Mapping[str, str]:
    """By probe, what it got hold of in a sandbox of this level: "" where the way was barred."""
    with tempfile.TemporaryDirectory(prefix="shardlab-") as folder, socket.create_server(("127.0.0.1", 0)) as server:
        workspace = Path(folder).resolve()
        workspace.chmod(0o755)
        (workspace / "labs").mkdir()
        os.environ[SECRET_VARIABLE] = secret = secrets.token_hex(16)
        outside = Outside(
            pid=os.getpid(),
            port=server.getsockname()[1],
            secret=secret,
            files=tuple(str(ROOT / name) for name in ("solutions", "tests/kit", "syllabus.toml", ".git", "results")),
            labs=str(workspace / "labs"),
            processes=FEW.processes,
        )
        try:
            with open_sandbox(level, workspace, FEW) as sandbox, RankPool(enclosure=sandbox.enclosure) as pool:
                return pool.run(try_all, 1, outside, timeout=PROBE_SECONDS)[0]
        finally:
            del os.environ[SECRET_VARIABLE]


def require_isolation(level: Level) -> None:
    """Try every escape before anybody's code runs.

    Raises:
        BadInput: one of them worked.
    """
    if open_ways := {name: got for name, got in escapes(level).items() if got}:
        listed = "; ".join(f"{name}: {got}" for name, got in open_ways.items())
        raise BadInput(f"the sandbox on this machine is open ({listed}), so nothing is graded; try another machine")
