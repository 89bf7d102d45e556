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
from shardlab.ranks.reading import read_regular

_KIT = tuple(f"{Path(__file__).parents[1] / room}{os.sep}" for room in ("ranks", "grade"))
_OUTERMOST = ("_run_module_as_main", "<module>")  # where a forked and a spawned rank's interpreter begins
_THREAD = re.compile(r"0x[0-9a-f]+")
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
    while not (frames := _main_thread(path)) and time.monotonic() < deadline:
        time.sleep(0.01)  # the signal handler writes within milliseconds
    return frames


def take_stacks(pid: int, path: Path, within: float) -> list[list[Frame]]:
    """Ask a rank for the stacks of all its threads as they are now; those written within `within` seconds."""
    before = len(_written(path))
    ask_for_stack(pid)
    deadline = time.monotonic() + within
    while not (stacks := list(_threads(path, before).values())) and time.monotonic() < deadline:
        time.sleep(0.01)
    return stacks


def _main_thread(path: Path) -> list[Frame]:
    """The newest whole dump of the main thread in the file; the one being written may still be short of frames."""
    name = _written(path).partition(b"\n")[0].decode(errors="replace")
    return _threads(path, len(name) + 1).get(name, [])


def _written(path: Path) -> bytes:
    """What is in the file; nothing if there is none, or something a rank put in its place."""
    try:
        return read_regular(path) or b""
    except ValueError:
        return b""


def _threads(path: Path, start: int) -> dict[str, list[Frame]]:
    """By thread, the newest stack after byte `start` of the file; of the main thread only whole ones."""
    written = _written(path)
    main, text = written.partition(b"\n")[0].decode(errors="replace"), written[start:].decode(errors="replace")
    found: dict[str, list[Frame]] = {}
    blocks = re.split(r"^(?=\S.*\(most recent call first\))", text, flags=re.MULTILINE)
    for block in blocks[1:]:
        thread = _THREAD.search(block)
        frames = [Frame(match["file"], int(match["line"]), match["function"]) for match in _FRAME.finditer(block)]
        if thread and frames and (thread[0] != main or frames[-1].function in _OUTERMOST):
            found[thread[0]] = frames
    return found


def torch_call(frames: list[Frame]) -> str:
    """The function of torch that the innermost user line called; empty where it called none."""
    at = frames.index(user_frame(frames)) if user_frame(frames) else 0
    called = [frame.function for frame in frames[:at] if frame.in_torch and frame.function != TORCH_LOGGER]
    return called[-1] if called else ""


def user_frame(frames: list[Frame]) -> Frame | None:
    """The innermost frame that is neither a library's nor the kit's."""
    return next((frame for frame in frames if not frame.in_library and not frame.in_kit), None)
