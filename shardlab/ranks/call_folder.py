"""The folder of one call: how caller, warm parent and ranks hand each other things.

    call         cloudpickle of (function, arguments)            caller -> ranks
    input-R      cloudpickle of per_rank[R]                      caller -> rank R, which removes it
    store        FileStore for the rendezvous; a new path every call, since a reused one hangs until the timeout
    status-R     last collective (`status_page`)                 rank R -> caller
    output-R     stdout and stderr                               rank R -> caller
    stack-R      Python stack on SIGUSR1                         rank R -> caller
    result-R     outcome, as `wire` encodes it                   rank R -> caller
    tmp/         TMPDIR of the ranks

Files rather than pipes: a rank never blocks on a full pipe, nobody has to read along, and what a rank wrote is still
there after it was killed. The folder goes with the call.
"""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class CallFolder:
    """Paths in the folder `root`."""

    root: Path

    @classmethod
    def create(cls, parent: Path | None = None) -> CallFolder:
        """A new folder in `parent`; None: where the system puts temporary files."""
        folder = cls(Path(tempfile.mkdtemp(prefix="shardlab-", dir=parent)))
        folder.tmp.mkdir()
        return folder

    @property
    def call(self) -> Path:
        return self.root / "call"

    @property
    def store(self) -> Path:
        return self.root / "store"

    @property
    def tmp(self) -> Path:
        return self.root / "tmp"

    @property
    def shared_memory_prefix(self) -> str:
        """Names of the shared memory the ranks create begin so (9 characters, all that Python leaves room for)."""
        return f"s{self.root.name.rpartition('-')[2]}"

    def input(self, rank: int) -> Path:
        return self.root / f"input-{rank}"

    def status(self, rank: int) -> Path:
        return self.root / f"status-{rank}"

    def output(self, rank: int) -> Path:
        return self.root / f"output-{rank}"

    def stack(self, rank: int) -> Path:
        return self.root / f"stack-{rank}"

    def result(self, rank: int) -> Path:
        return self.root / f"result-{rank}"


@dataclass(frozen=True)
class Request:
    """What the caller asks of the warm parent, one line of JSON.

    Attributes:
        folder: of the call.
        ranks: how many.
        timeout: seconds for the whole call.
        backend: ``"gloo"``, ``"nccl"`` or None: NCCL where every rank has a GPU of its own, else gloo.
        path: the ranks' sys.path.
        environment: the caller's, so that what a notebook sets in os.environ reaches its ranks.
        working_folder: the caller's.
    """

    folder: str
    ranks: int
    timeout: float
    backend: str | None
    path: list[str]
    environment: dict[str, str]
    working_folder: str

    def to_line(self) -> bytes:
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes) -> Request:
        return cls(**json.loads(line))

    @property
    def call_folder(self) -> CallFolder:
        return CallFolder(Path(self.folder))
