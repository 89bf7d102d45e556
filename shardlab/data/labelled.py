"""Real texts with labels: IMDB reviews where they can be had, else shorter ones, else Bible verses."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from shardlab.data.cache import cache_folder
from shardlab.data.sources import Source, find, tell
from shardlab.data.tables import read_columns, split_files
from shardlab.data.text import bible_chapters

IMDB = Source("IMDB", "imdb", "stanfordnlp/imdb", "plain_text/*.parquet")
SENTIMENTS = ("negative", "positive")
TESTAMENTS = ("Old Testament", "New Testament")
FIRST_OF_NEW_TESTAMENT = "Matthew"
SNIPPETS_FILE = "movie-review-snippets.tsv"
TEST_EVERY = 5


@dataclass(frozen=True)
class LabelledTexts:
    """Texts of two classes: `classes[label]` says what a label (0 or 1) means. Labels are [N] int64."""

    name: str
    classes: tuple[str, str]
    train_texts: list[str]
    train_labels: Tensor
    test_texts: list[str]
    test_labels: Tensor


def imdb() -> LabelledTexts:
    """IMDB (Maas et al., ACL 2011): 25,000 reviews to train on and 25,000 to test, negative or positive. Says which.

    In $SHARDLAB_DATA/imdb: the published folders {train,test}/{neg,pos}/*.txt (aclImdb), or the hub's Parquet files.
    Where IMDB cannot be had: 10,000 one-sentence movie reviews, if `python -m shardlab.data` has fetched them, else
    verses labelled by testament. Mind `classes`.

    Raises:
        FileNotFoundError: that folder exists and holds neither.
        ValueError: a file in it is broken.
    """
    found = find(IMDB)
    if found.folder:
        tell(IMDB, found, instead="")
        parts = [part for split in ("train", "test") for part in imdb_split(found.folder, split)]
        return labelled("IMDB", SENTIMENTS, *parts)
    snippets = cache_folder() / SNIPPETS_FILE
    instead = movie_snippets(snippets) if snippets.exists() else verses()
    tell(IMDB, found, instead=instead.name)
    return instead


def imdb_split(folder: Path, split: str) -> tuple[list[str], list[int]]:
    """Texts and labels of one split; negative ones first, in the order of their files."""
    root = next((path.parent for path in sorted(folder.rglob(f"{split}/neg")) if path.is_dir()), None)
    if root:
        files = [
            (path, label) for label, name in enumerate(("neg", "pos")) for path in sorted((root / name).glob("*.txt"))
        ]
        return [path.read_text(encoding="utf-8") for path, _ in files], [label for _, label in files]
    tables = split_files(folder, split)
    if not tables:
        raise FileNotFoundError(f"{folder} holds neither {split}/neg and {split}/pos nor Parquet files of {split}")
    texts, labels = read_columns(tables, ("text", "label"))
    return texts, labels


def movie_snippets(path: Path) -> LabelledTexts:
    """One-sentence movie reviews rated by 20 people each, from -4 to 4; clearly negative or positive ones only.

    Source: C.J. Hutto and E. Gilbert, VADER, ICWSM 2014. A line is identifier, mean rating, text; every 5th is test.

    Raises:
        ValueError: a line of another form.
    """
    texts, labels = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        fields = line.split("\t")
        try:
            rating, text = float(fields[1]), fields[2]
        except (ValueError, IndexError):
            raise ValueError(f"{path}, line {number}: not identifier, rating and text: {line[:60]!r}") from None
        if abs(rating) >= 1:
            texts.append(text)
            labels.append(int(rating > 0))
    return labelled("movie-review snippets", SENTIMENTS, *every_fifth_is_test(texts, labels))


def verses() -> LabelledTexts:
    """Bible verses, each with the testament it is from: real labels that are always there."""
    texts, labels, label = [], [], 0
    for (book, _), chapter in bible_chapters().items():
        label = int(label or book == FIRST_OF_NEW_TESTAMENT)
        texts += chapter
        labels += [label] * len(chapter)
    return labelled("Bible verses labelled by testament", TESTAMENTS, *every_fifth_is_test(texts, labels))


def every_fifth_is_test(texts: list[str], labels: list[int]) -> tuple[list[str], list[int], list[str], list[int]]:
    """Train texts and labels, test texts and labels."""
    train = [index for index in range(len(texts)) if index % TEST_EVERY]
    test = range(0, len(texts), TEST_EVERY)
    return [texts[i] for i in train], [labels[i] for i in train], [texts[i] for i in test], [labels[i] for i in test]


def labelled(
    name: str, classes: tuple[str, str], train: list[str], train_labels: list, test: list[str], test_labels: list
) -> LabelledTexts:
    """Lists of labels as tensors."""
    train_y, test_y = (torch.tensor(labels, dtype=torch.int64) for labels in (train_labels, test_labels))
    return LabelledTexts(name, classes, train, train_y, test, test_y)
