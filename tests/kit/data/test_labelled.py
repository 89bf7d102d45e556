"""IMDB in every form it comes in, and what stands in for it."""

import io
import tarfile

import pyarrow
import pyarrow.parquet
import pytest

from shardlab import data
from shardlab.data import __main__ as prepare

REVIEWS = {"train": (["bad", "good é"], [0, 1]), "test": (["worse", "worst", "best"], [0, 0, 1])}


def assert_is_small(texts: data.LabelledTexts) -> None:
    assert (texts.name, texts.classes) == ("IMDB", ("negative", "positive"))
    assert (texts.train_texts, texts.train_labels.tolist()) == REVIEWS["train"]
    assert (texts.test_texts, texts.test_labels.tolist()) == REVIEWS["test"]


@pytest.mark.parametrize("below", ["", "aclImdb"])
def test_imdb_as_published(data_folder, below, capsys):
    for split, (texts, labels) in REVIEWS.items():
        for name in ("neg", "pos", "unsup"):
            (data_folder / "imdb" / below / split / name).mkdir(parents=True)
        for number, (text, label) in enumerate(zip(texts, labels, strict=True)):
            folder = data_folder / "imdb" / below / split / ("neg", "pos")[label]
            (folder / f"{number}_1.txt").write_text(text, encoding="utf-8")
    assert_is_small(data.imdb())
    assert capsys.readouterr().out == f"data: IMDB from {data_folder / 'imdb'}\n"


def test_imdb_as_the_hub_keeps_it(data_folder):
    (data_folder / "imdb").mkdir()
    for split, (texts, labels) in {**REVIEWS, "unsupervised": (["?"], [-1])}.items():
        table = pyarrow.table({"text": texts, "label": labels})
        pyarrow.parquet.write_table(table, data_folder / "imdb" / f"{split}-00000-of-00001.parquet")
    assert_is_small(data.imdb())


def test_a_folder_without_the_files_is_an_error(data_folder):
    (data_folder / "imdb").mkdir()
    with pytest.raises(FileNotFoundError, match="holds neither train/neg and train/pos nor Parquet files"):
        data.imdb()


def test_with_nothing_fetched_verses_stand_in(own_cache, capsys):
    texts = data.imdb()
    assert texts.classes == ("Old Testament", "New Testament")
    assert len(texts.train_texts) + len(texts.test_texts) == 31102
    assert int(texts.train_labels.sum() + texts.test_labels.sum()) == 7957  # verses of the New Testament
    assert texts.train_labels.numel() == len(texts.train_texts)
    assert not set(texts.classes) & {"negative", "positive"}
    assert capsys.readouterr().out.startswith("data: Bible verses labelled by testament, because IMDB is not on disk")


def test_snippets_that_were_fetched_are_used(own_cache, capsys):
    own_cache.mkdir()
    rows = [
        "1\t2.5\tgreat",
        "2\t-3.1\tawful",
        "3\t0.4\tso so",
        "4\t1.0\tgood\r",
        "5\t-1.5\tbad",
        "6\t-2\tpoor",
        "7\t3\tfine",
    ]
    (own_cache / "movie-review-snippets.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    texts = data.imdb()
    assert texts.train_texts == ["awful", "good", "bad", "poor"]
    assert texts.train_labels.tolist() == [0, 1, 0, 0]
    assert (texts.test_texts, texts.test_labels.tolist()) == (["great", "fine"], [1, 1])
    assert "data: movie-review snippets, because IMDB" in capsys.readouterr().out


def test_a_line_of_another_form_is_named(own_cache):
    own_cache.mkdir()
    (own_cache / "movie-review-snippets.tsv").write_text("1\t2.5\tgreat\nno tabs here\n")
    with pytest.raises(ValueError, match=r"movie-review-snippets\.tsv, line 2: not identifier, rating and text"):
        data.imdb()


def archive_with(tmp_path, content: bytes):
    """A source archive of the shape that the package has."""
    inner = io.BytesIO()
    for file, name, data_ in ((inner, prepare.GROUND_TRUTH, content), (None, prepare.INNER_ARCHIVE, None)):
        path = tmp_path / "vaderSentiment-3.3.2.tar.gz"
        member = tarfile.TarInfo(name)
        body = data_ if file is inner else inner.getvalue()
        member.size = len(body)
        with tarfile.open(None if file is inner else path, "w:gz", fileobj=file) as archive:
            archive.addfile(member, io.BytesIO(body))
    return path


def test_the_snippets_are_taken_out_of_the_archive_in_the_archive(tmp_path, monkeypatch):
    import hashlib

    archive = archive_with(tmp_path, "1\t2.5\tété\r\n".encode())
    monkeypatch.setattr(prepare, "ARCHIVE_SHA256", hashlib.sha256(archive.read_bytes()).hexdigest())
    assert prepare.snippets_of(archive).decode() == "1\t2.5\tété\r\n"


def test_another_archive_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"vaderSentiment-3\.3\.2\.tar\.gz is not the archive that was expected"):
        prepare.snippets_of(archive_with(tmp_path, b"1\t2.5\tx\n"))


def test_preparing_without_a_package_index_says_so_and_goes_on(capsys, monkeypatch):
    for name, value in {"INDEX_URL": "http://127.0.0.1:9/simple", "EXTRA_INDEX_URL": "", "FIND_LINKS": ""}.items():
        monkeypatch.setenv(f"PIP_{name}", value)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(prepare, "SNIPPETS_FILE", "never-fetched.tsv")
    prepare.main()
    printed = capsys.readouterr().out
    assert "text corpus, train: 1,301,7" in printed
    assert "digits: 4,000 to train on, 1,000 to test" in printed
    assert "movie-review snippets: not fetched (" in printed
