"""How much of a submission is read before it is refused, and the meter that holds to it.

A whole checkout of the course with its .git folder stays well below each of these; a virtual environment does not,
and is not meant to be handed in.
"""

from shardlab.grade.workspace import MAX_FILE_BYTES, SubmissionError

MIB = 2**20
MAX_LAB_BYTES = MAX_FILE_BYTES  # of one lab file
MAX_ARCHIVE_BYTES = 32 * MIB  # of the archive as it was handed in
MAX_UNPACKED_BYTES = 64 * MIB  # that come out of it, wanted or not
MAX_RATIO = 200  # times as many bytes unpacked as packed; text comes to 10, a tar of empty files to 100
RATIO_FREE_BYTES = MIB  # that may come out before the ratio counts
MAX_FILES = 20_000  # files, folders and links
MAX_PATH_BYTES = 1024
MAX_PATH_DEPTH = 32
MAX_HEADER_BYTES = 64 * 1024  # of what a tar says about one file beside its name and size
MAX_XZ_MEMORY = 128 * MIB  # `xz -9` asks for 65 MiB
# Of a program that reads a submission for us: git, Python's compiler
MAX_CHILD_CPU_SECONDS = 20
MAX_CHILD_SECONDS = 120  # on the clock; a backstop for a busy machine
MAX_CHILD_MEMORY = 1024 * MIB
MAX_CHILD_FILE_BYTES = 2 * MAX_ARCHIVE_BYTES

LEAVE_OUT = "hand in only your lab files, without .venv, .git and data"


class Meter:
    """Counts what comes out of one submission; SubmissionError as soon as it is too much.

    Args:
        packed: bytes of the archive; None for what is not packed.
    """

    def __init__(self, packed: int | None = None) -> None:
        self.packed = packed
        self.files = 0
        self.bytes = 0

    def file(self) -> None:
        self.files += 1
        if self.files > MAX_FILES:
            raise SubmissionError(f"the submission holds more than {MAX_FILES:,} files: {LEAVE_OUT}")

    def out(self, count: int) -> None:
        self.bytes += count
        if self.bytes > MAX_UNPACKED_BYTES:
            raise SubmissionError(f"the submission unpacks to more than {MAX_UNPACKED_BYTES // MIB} MiB: {LEAVE_OUT}")
        if self.packed is not None and self.bytes > max(RATIO_FREE_BYTES, MAX_RATIO * self.packed):
            raise SubmissionError(
                f"the submission unpacks to more than {MAX_RATIO} times its size, as no program text does"
            )
