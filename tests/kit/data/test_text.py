"""The Bible as a corpus, and WikiText-2 in every form it comes in."""

import re

import pyarrow
import pyarrow.parquet
import pytest

from shardlab import data

ROWS = {"train": ["", " = Title = \n", " Some <unk> words . \n"], "validation": [" held out \n"], "test": [" test \n"]}


def write_parquet(folder, rows=ROWS):
    folder.mkdir(parents=True)
    for split, texts in rows.items():
        pyarrow.parquet.write_table(pyarrow.table({"text": texts}), folder / f"{split}-00000-of-00001.parquet")
    return folder


def test_the_corpus_is_the_whole_bible_once():
    text = data.text_corpus()
    assert text.name == "King James Bible"
    chapters = [part.split("\n") for part in (text.train + "\n" + text.valid).strip().split("\n\n")]
    assert len(chapters) == 1189  # of the 66 books
    assert sum(len(verses) - 1 for verses in chapters) == 31102
    assert len({title for title, *_ in chapters}) == 1189
    assert text.train.startswith("Genesis 1\nIn the beginning God created the heaven and the earth.\n")


def test_whole_chapters_are_held_out():
    text = data.text_corpus()
    titles = re.findall(r"^(?:\d )?[A-Z][\w ]+ \d+$", text.valid, re.MULTILINE)
    assert len(titles) == 59
    assert not any(f"\n{title}\n" in text.train for title in titles)
    assert 0.04 < len(text.valid) / len(text.train) < 0.06


def test_without_wikitext_the_bible_is_used_and_that_is_said(capsys):
    assert data.wikitext2() == data.text_corpus()
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith("data: King James Bible, because WikiText-2 is not on disk and HF_HUB_OFFLINE is set")
    assert "$SHARDLAB_DATA/wikitext2" in line


def test_other_ranks_say_nothing(capsys, monkeypatch):
    monkeypatch.setenv("RANK", "3")
    data.wikitext2()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("suffix", ["raw", "tokens"])
def test_wikitext_as_published(data_folder, capsys, suffix):
    (data_folder / "wikitext2").mkdir()
    for split in ("train", "valid", "test"):
        (data_folder / "wikitext2" / f"wiki.{split}.{suffix}").write_text(f" = {split} = \n é \n", encoding="utf-8")
    assert data.wikitext2() == data.Text("WikiText-2", " = train = \n é \n", " = valid = \n é \n")
    assert capsys.readouterr().out == f"data: WikiText-2 from {data_folder / 'wikitext2'}\n"


def test_wikitext_as_parquet(data_folder):
    write_parquet(data_folder / "wikitext2")
    assert data.wikitext2() == data.Text("WikiText-2", " = Title = \n Some <unk> words . \n", " held out \n")


def test_wikitext_in_the_hub_cache(no_public_data, capsys):
    repository = no_public_data / "hub" / "datasets--Salesforce--wikitext"
    write_parquet(repository / "snapshots" / "abc" / "wikitext-2-raw-v1")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc")
    assert data.wikitext2().valid == " held out \n"
    assert "from the Hugging Face cache (Salesforce/wikitext)" in capsys.readouterr().out


def test_wikitext_as_the_datasets_library_prepared_it(no_public_data, capsys):
    folder = no_public_data / "datasets" / "Salesforce___wikitext" / "wikitext-2-raw-v1" / "0.0.0" / "abc"
    unfinished = folder.with_name("abd.incomplete")
    for target in (folder, unfinished):
        target.mkdir(parents=True)
        for split, texts in ROWS.items():
            table = pyarrow.table({"text": texts if target == folder else ["unfinished"]})
            with pyarrow.ipc.new_stream(str(target / f"wikitext-{split}.arrow"), table.schema) as stream:
                stream.write_table(table)
    assert data.wikitext2().valid == " held out \n"
    assert "from the cache of Hugging Face datasets" in capsys.readouterr().out


def test_the_files_of_the_datasets_library_itself_are_read(tmp_path):
    """Guards the reading of Arrow against a change of that library's format."""
    from datasets import Dataset

    from shardlab.data.tables import read_columns, split_files

    Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}).save_to_disk(tmp_path / "saved")
    (written,) = (tmp_path / "saved").glob("*.arrow")
    written.rename(tmp_path / "imdb-train.arrow")
    assert read_columns(split_files(tmp_path, "train"), ("text", "label")) == (["a", "b"], [0, 1])


def test_a_folder_without_the_files_is_an_error(data_folder):
    (data_folder / "wikitext2").mkdir()
    with pytest.raises(FileNotFoundError, match=r"wikitext2 holds neither wiki\.train\.raw"):
        data.wikitext2()


@pytest.mark.parametrize("content", [b"not a table", None])
def test_a_broken_table_is_named(data_folder, content):
    folder = write_parquet(data_folder / "wikitext2")
    file = folder / "train-00000-of-00001.parquet"
    if content:
        file.write_bytes(content)
    else:
        pyarrow.parquet.write_table(pyarrow.table({"other": ["a"]}), file)
    with pytest.raises(ValueError, match=r"train-00000-of-00001\.parquet is no table with the columns text"):
        data.wikitext2()


def test_parts_of_a_split_are_read_in_order(tmp_path):
    from shardlab.data.tables import split_files

    for name in ("train-00001-of-00002.parquet", "train-00000-of-00002.parquet", "constraint-x.parquet", "train.csv"):
        (tmp_path / name).touch()
    assert [path.name for path in split_files(tmp_path, "train")] == [
        "train-00000-of-00002.parquet",
        "train-00001-of-00002.parquet",
    ]
