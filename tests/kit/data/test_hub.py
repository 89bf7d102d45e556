"""Reaching for the hub: a real download from a hub on this machine, and a quick way out where there is none."""

import socket
import subprocess
import sys
import time

import pyarrow
import pyarrow.parquet
import pytest
from fake_hub import serve

from shardlab.data import sources
from shardlab.data.text import WIKITEXT2

LOAD = "from shardlab import data; text = data.wikitext2(); print(text.name, '|', text.train.strip()[:9])"


def load_in_a_fresh_process(tmp_path, endpoint: str) -> list[str]:
    """What a program prints that loads WikiText-2; the hub's address is read at import, hence the process."""
    environment = {
        "PATH": "/usr/bin:/bin",
        "HOME": str(tmp_path),
        "HF_ENDPOINT": endpoint,
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "SHARDLAB_CACHE": str(tmp_path / "cache"),
    }
    run = subprocess.run(
        [sys.executable, "-c", LOAD], env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    return run.stdout.splitlines()


def test_a_reachable_hub_is_used_once_and_its_cache_from_then_on(tmp_path):
    published = tmp_path / "published" / "wikitext-2-raw-v1"
    published.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        table = pyarrow.table({"text": [f"{split} text"]})
        pyarrow.parquet.write_table(table, published / f"{split}-00000-of-00001.parquet")
    with serve("Salesforce/wikitext", tmp_path / "published") as endpoint:
        assert load_in_a_fresh_process(tmp_path, endpoint) == [
            "data: fetching WikiText-2 from the Hugging Face hub ...",
            "data: WikiText-2 from the Hugging Face hub (Salesforce/wikitext)",
            "WikiText-2 | train tex",
        ]
    assert load_in_a_fresh_process(tmp_path, endpoint) == [
        "data: WikiText-2 from the Hugging Face cache (Salesforce/wikitext)",
        "WikiText-2 | train tex",
    ]


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ("wikitext-2-raw-v1/train-00000-of-00001.parquet", "its download failed ("),
        ("README.md", "Salesforce/wikitext on the hub holds no wikitext-2-raw-v1/*.parquet"),
    ],
)
def test_a_download_that_brings_nothing_falls_back(tmp_path, listed, reason):
    file = tmp_path / "published" / listed
    file.parent.mkdir(parents=True)
    file.touch()
    with serve("Salesforce/wikitext", tmp_path / "published") as endpoint:
        file.unlink()
        fetching, told, used = load_in_a_fresh_process(tmp_path, endpoint)
    assert fetching == "data: fetching WikiText-2 from the Hugging Face hub ..."
    assert told.startswith(f"data: King James Bible, because WikiText-2 is not on disk and {reason}")
    assert used == "King James Bible | Genesis 1"


@pytest.mark.parametrize("answer", ["silence", "refusal", "no such data set"])
def test_without_a_hub_the_answer_comes_within_seconds(answer, monkeypatch, tmp_path):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with socket.create_server(("127.0.0.1", 0)) as silent, serve("other/name", tmp_path) as hub:
        port = silent.getsockname()[1]
        if answer == "refusal":
            silent.close()
        monkeypatch.setenv("HF_ENDPOINT", hub if answer == "no such data set" else f"http://127.0.0.1:{port}")
        began = time.monotonic()
        found = sources.find(WIKITEXT2)
        assert time.monotonic() - began < sources.PROBE_SECONDS + 3
    assert found == sources.Found(None, "is not on disk and the Hugging Face hub cannot be reached")


def test_a_name_look_up_that_hangs_does_not_hold_us(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(sources, "PROBE_SECONDS", 0.2)

    def hang(*_, **__):
        time.sleep(5)
        raise OSError("no such name")

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    began = time.monotonic()
    assert not sources.hub_answers("any/name")
    assert time.monotonic() - began < 3
