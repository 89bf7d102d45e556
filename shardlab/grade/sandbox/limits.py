"""What a submission may use, as the sandbox enforces it."""

from __future__ import annotations

from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Per submission, unless it says per process. The course's own lessons need a tenth of it.

    Attributes:
        memory_bytes: of all processes together (control group; level full).
        data_bytes: of one process: below the group's, so that a rank sees "cannot allocate" and is not just killed.
        file_bytes: the largest file a process may write.
        scratch_bytes: of /tmp and of /dev/shm, each.
        processes: processes and threads at a time.
        open_files: of one process.
        stack_bytes: of one thread's stack.
    """

    memory_bytes: int = 6144 * MIB
    data_bytes: int = 3072 * MIB
    file_bytes: int = 256 * MIB
    scratch_bytes: int = 512 * MIB
    processes: int = 512
    open_files: int = 1024
    stack_bytes: int = 8 * MIB

    def prlimit(self) -> list[str]:
        """The command that runs its arguments under the limits of one process."""
        return [
            "prlimit",
            f"--data={self.data_bytes}",
            f"--fsize={self.file_bytes}",
            f"--nofile={self.open_files}",
            f"--nproc={self.processes}",
            f"--stack={self.stack_bytes}",
            "--core=0",
            "--",
        ]
