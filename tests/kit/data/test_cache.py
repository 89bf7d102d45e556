"""Where cached files lie, and what happens when they cannot."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from shardlab.data import cache


def test_the_cache_lies_in_the_checkout_unless_told_otherwise(monkeypatch, tmp_path):
    monkeypatch.delenv("SHARDLAB_CACHE", raising=False)
    assert cache.cache_folder() == Path(cache.__file__).parents[2] / ".cache" / "shardlab"
    monkeypatch.setattr(cache, "CHECKOUT", tmp_path)
    assert cache.cache_folder() == Path.home() / ".cache" / "shardlab"
    monkeypatch.setenv("SHARDLAB_CACHE", str(tmp_path / "x"))
    assert cache.cache_folder() == tmp_path / "x"


def test_made_once_then_read(own_cache):
    made = []

    def make() -> bytes:
        made.append(1)
        return b"content"

    assert [cache.cached("name", make) for _ in range(3)] == [b"content"] * 3
    assert len(made) == 1
    assert [path.name for path in own_cache.iterdir()] == ["name"]


def test_two_processes_at_once_make_the_same_whole_file(own_cache):
    """Both find the cache empty: each waits, while making, until the other has begun too."""
    script = """
import sys, time
from pathlib import Path
from shardlab.data.cache import cached

def make():
    Path(sys.argv[1] + sys.argv[2]).touch()
    while not Path(sys.argv[1] + sys.argv[3]).exists():
        time.sleep(0.01)
    return bytes(10_000_000)

print(cached("name", make) == cached("name", lambda: b"made again") == bytes(10_000_000))
"""
    begun = str(own_cache.parent / "begun-")
    both = [
        subprocess.Popen([sys.executable, "-c", script, begun, *names], stdout=subprocess.PIPE, text=True)
        for names in (("a", "b"), ("b", "a"))
    ]
    assert [process.communicate(timeout=60)[0] for process in both] == ["True\n", "True\n"]
    assert [path.name for path in own_cache.iterdir()] == ["name"]


def test_a_failure_while_making_leaves_nothing(own_cache):
    def make() -> bytes:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.cached("name", make)
    assert not own_cache.exists() or not list(own_cache.iterdir())


@pytest.mark.parametrize(("number", "raised"), [(30, False), (13, False), (28, True)])  # EROFS, EACCES, ENOSPC
def test_a_read_only_cache_is_no_error_but_a_full_disk_is(own_cache, monkeypatch, number, raised):
    def refuse(path, content):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(cache, "write_bytes", refuse)
    if raised:
        with pytest.raises(OSError, match="No space left"):
            cache.cached("name", lambda: b"content")
    else:
        assert cache.cached("name", lambda: b"content") == b"content"


def test_arrays_come_back_as_they_were(own_cache):
    arrays = {"x": np.arange(6, dtype=np.int32).reshape(2, 3), "empty": np.zeros(0)}
    for _ in range(2):
        back = cache.cached_arrays("arrays", lambda: arrays)
        assert {name: (a.dtype, a.tolist()) for name, a in back.items()} == {
            name: (a.dtype, a.tolist()) for name, a in arrays.items()
        }
