"""A program of ours that has to read what a stranger wrote: with limits on its time, its memory and what it writes."""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from shardlab.grade.intake.limits import (
    MAX_CHILD_CPU_SECONDS,
    MAX_CHILD_FILE_BYTES,
    MAX_CHILD_MEMORY,
    MAX_CHILD_SECONDS,
)

# macOS knows no limit on memory; there the others hold
_LIMITED = f"""
ulimit -t {MAX_CHILD_CPU_SECONDS} && ulimit -c 0 && ulimit -f {MAX_CHILD_FILE_BYTES // 512} || exit 125
ulimit -v {MAX_CHILD_MEMORY // 1024} 2>/dev/null
exec "$@"
"""
_NOT_STARTED = (125, 126, 127)
_KEPT = ("PATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")  # what programs need to start at all
_ERROR_BYTES = 4096


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    Attributes:
        code: its exit code; below zero: the signal that ended it.
        printed: all of its output.
        errors: the beginning of what it wrote to stderr.
    """

    code: int
    printed: bytes
    errors: str


def run_limited(command: Sequence[str], place: Path, environment: Mapping[str, str]) -> Outcome:
    """Run `command` in the folder `place`, which also takes its output; nothing of it runs on afterwards.

    Raises:
        OSError: it cannot be started here, whatever it was to read.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    printed, said = place / "stdout", place / "stderr"
    with printed.open("wb") as out, said.open("wb") as error:
        process = subprocess.Popen(
            ["sh", "-c", _LIMITED, "sh", *command],
            cwd=place,
            env={"PATH": os.defpath, **kept, "HOME": str(place), "LC_ALL": "C", **environment},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=error,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout=MAX_CHILD_SECONDS)
        except BaseException as stopped:
            os.killpg(process.pid, signal.SIGKILL)  # and what it started; it was not waited for yet
            process.wait()
            if not isinstance(stopped, subprocess.TimeoutExpired):
                raise
            code = -signal.SIGKILL
    errors = said.read_bytes()[:_ERROR_BYTES].decode(errors="replace")
    if code in _NOT_STARTED:
        raise OSError(f"{command[0]} cannot be started: {errors.strip()}")
    return Outcome(code, printed.read_bytes(), errors)
