"""Where a public data set may be: a folder of the user's, Hugging Face's caches, or the hub itself.

Order: $SHARDLAB_DATA/<folder>, the hub's cache, the cache of the `datasets` library, the network. Without a network
the answer comes within `PROBE_SECONDS`; HF_HUB_OFFLINE=1 skips even that.
"""

import functools
import os
import threading
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from shardlab.data.tables import split_files
from shardlab.show.rank_zero import is_rank_zero

PROBE_SECONDS = 3.0
TRUE_VALUES = ("1", "on", "true", "yes")


@dataclass(frozen=True)
class Source:
    """A public data set.

    Args:
        title: its name, for people.
        folder: its folder below $SHARDLAB_DATA.
        repository: its repository on the Hugging Face hub.
        files: the Parquet files to take from there, as a pattern.
    """

    title: str
    folder: str
    repository: str
    files: str


@dataclass(frozen=True)
class Found:
    """A folder that holds the data, and where that is, in words; or no folder, and why."""

    folder: Path | None
    words: str


def find(source: Source) -> Found:
    """Look in every place, nearest first; the network comes last."""
    if chosen := os.environ.get("SHARDLAB_DATA"):
        folder = Path(chosen).expanduser() / source.folder
        if folder.is_dir():
            return Found(folder, f"from {folder}")
    if folder := in_hub_cache(source):
        return Found(folder, f"from the Hugging Face cache ({source.repository})")
    if folder := in_datasets_cache(source):
        return Found(folder, f"from the cache of Hugging Face datasets ({source.repository})")
    return download(source)


def in_hub_cache(source: Source) -> Path | None:
    """The snapshot folder in the hub's own cache, if it holds a training split."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(source.repository, repo_type="dataset", local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    folder /= Path(source.files).parent
    return folder if split_files(folder, "train") else None


def in_datasets_cache(source: Source) -> Path | None:
    """The newest folder of prepared Arrow files that `datasets.load_dataset` left."""
    from huggingface_hub.constants import HF_HOME

    root = Path(os.environ.get("HF_DATASETS_CACHE") or Path(HF_HOME) / "datasets")
    configuration = Path(source.files).parts[0]
    prepared = [
        path.parent
        for path in split_files(root / source.repository.replace("/", "___") / configuration, "train")
        if not path.parent.name.endswith(".incomplete")
    ]
    return max(prepared, key=lambda folder: folder.stat().st_mtime, default=None)


def download(source: Source) -> Found:
    """Fetch the files from the hub, if it answers at all."""
    if os.environ.get("HF_HUB_OFFLINE", "").lower() in TRUE_VALUES:
        return Found(None, "is not on disk and HF_HUB_OFFLINE is set")
    if not hub_answers(source.repository):
        return Found(None, "is not on disk and the Hugging Face hub cannot be reached")
    from huggingface_hub import snapshot_download

    if is_rank_zero():
        print(f"data: fetching {source.title} from the Hugging Face hub ...", flush=True)
    try:
        folder = snapshot_download(source.repository, repo_type="dataset", allow_patterns=source.files)
    except Exception as error:  # whatever goes wrong on the way, the lesson goes on with the data at hand
        return Found(None, f"is not on disk and its download failed ({type(error).__name__})")
    folder = Path(folder) / Path(source.files).parent
    if not split_files(folder, "train"):
        return Found(None, f"is not on disk and {source.repository} on the hub holds no {source.files}")
    return Found(folder, f"from the Hugging Face hub ({source.repository})")


@functools.cache
def hub_answers(repository: str) -> bool:
    """Whether the hub says within `PROBE_SECONDS` that it has this data set. Asked once per process.

    A thread of its own asks, because no timeout of Python's reaches the name look-up.
    """
    endpoint = os.environ.get("HF_ENDPOINT") or "https://huggingface.co"
    answers = []

    def ask() -> None:
        try:
            with urllib.request.urlopen(f"{endpoint}/api/datasets/{repository}", timeout=PROBE_SECONDS) as reply:
                answers.append(reply.status == 200)
        except OSError:  # URLError and HTTPError are OSErrors
            answers.append(False)

    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return answers == [True]


def tell(source: Source, found: Found, instead: str) -> None:
    """Say in one line, on rank 0, which data is used."""
    if not is_rank_zero():
        return
    if found.folder:
        print(f"data: {source.title} {found.words}", flush=True)
    else:
        hint = f"to use it put it into $SHARDLAB_DATA/{source.folder}"
        print(f"data: {instead}, because {source.title} {found.words}; {hint}", flush=True)
