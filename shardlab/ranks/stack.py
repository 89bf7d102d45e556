"""Python stacks of ranks that are stuck, written by faulthandler on SIGUSR1: works while the rank is blocked in C."""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from shardlab.observe.calls import LIBRARY_FOLDERS, TORCH_FOLDER, TORCH_LOGGER

_KIT = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("ranks", "grade"))
_OUTERMOST = ("_run_module_as_main", "<module>")  # where a forked and a spawned rank's interpreter begins
_FRAME = re.compile(r'  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)')


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str

    @property
    def in_torch(self) -> bool:
        return self.file.startswith(TORCH_FOLDER)

    @property
    def in_library(self) -> bool:
        return self.file.startswith(LIBRARY_FOLDERS)

    @property
    def in_kit(self) -> bool:
        """Whether it is the machinery that runs ranks, of no interest to the caller."""
        return self.file.startswith((*_KIT, "<frozen"))


def dump_on_signal(path: Path) -> None:
    """From now on SIGUSR1 writes all stacks of this process to `path`. The first line names the main thread."""
    file = path.open("w")  # stays open for the life of the rank
    file.write(f"{threading.main_thread().ident:#018x}\n")
    file.flush()
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def ask_for_stack(pid: int) -> None:
    """Ask a rank for its stack; one that has ended needs none."""
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return


def read_stack(path: Path, within: float = 0.0) -> list[Frame]:
    """Frames of the main thread, innermost first, waiting up to `within` seconds for them to be written."""
    deadline = time.monotonic() + within
    while not (frames := _parse(path)) and time.monotonic() < deadline:
        time.sleep(0.01)  # the signal handler writes within milliseconds
    return frames


def _parse(path: Path) -> list[Frame]:
    """The newest whole dump of the main thread in the file; the one being written may still be short of frames."""
    lines = path.read_text().splitlines() if path.exists() else []
    dumps: list[list[Frame]] = []
    in_main = False
    for line in lines[1:]:
        if "(most recent call first)" in line:
            in_main = lines[0] in line
            if in_main:
                dumps.append([])
        elif in_main and (match := _FRAME.match(line)):
            dumps[-1].append(Frame(match["file"], int(match["line"]), match["function"]))
    whole = [frames for frames in dumps if frames and frames[-1].function in _OUTERMOST]
    return whole[-1] if whole else []


def torch_call(frames: list[Frame]) -> str:
    """The function of torch that the innermost user line called; empty where it called none."""
    at = frames.index(user_frame(frames)) if user_frame(frames) else 0
    called = [frame.function for frame in frames[:at] if frame.in_torch and frame.function != TORCH_LOGGER]
    return called[-1] if called else ""


def user_frame(frames: list[Frame]) -> Frame | None:
    """The innermost frame that is neither a library's nor the kit's."""
    return next((frame for frame in frames if not frame.in_library and not frame.in_kit), None)
