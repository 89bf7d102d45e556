"""Every test of the data room runs with caches of its own and, unless it asks for a hub, without a network."""

import pytest

from shardlab.data import sources


@pytest.fixture(autouse=True)
def no_public_data(monkeypatch, tmp_path):
    """No data set of this machine's user is found, and nothing leaves the machine."""
    from huggingface_hub import constants

    home = tmp_path / "hf_home"
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("SHARDLAB_DATA", raising=False)
    monkeypatch.delenv("HF_DATASETS_CACHE", raising=False)
    monkeypatch.setattr(constants, "HF_HOME", str(home))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    sources.hub_answers.cache_clear()
    return home


@pytest.fixture
def own_cache(monkeypatch, tmp_path):
    """An empty cache of the kit's; gives its folder."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("SHARDLAB_CACHE", str(folder))
    return folder


@pytest.fixture
def data_folder(monkeypatch, tmp_path):
    """An empty $SHARDLAB_DATA."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("SHARDLAB_DATA", str(folder))
    return folder
