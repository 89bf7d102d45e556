"""Decks become HTML that needs no network, and PDF where Chromium is there."""

import re
import shutil
import subprocess

import pytest

from shardlab.bad_input import BadInput
from shardlab.slides import build, find_chromium, find_marp, tools

DECK = """---
marp: true
theme: shardlab
math: mathjax
---

# One

$$x^2$$

![](figures/dot.svg)

---

# Two

```python
pass
```

<!-- What the speaker says. -->
"""
DOT = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9"><circle r="9"/></svg>'


@pytest.fixture
def deck(tmp_path):
    folder = tmp_path / "source" / "day1_test"
    (folder / "figures").mkdir(parents=True)
    (folder / "figures" / "dot.svg").write_text(DOT)
    (folder / "1_x.md").write_text(DECK)
    return folder / "1_x.md"


@pytest.mark.slow
@pytest.mark.skipif(find_marp() is None, reason="marp is missing: `make slides` installs it")
def test_a_deck_becomes_pages(deck, tmp_path):
    built = build([deck], tmp_path / "out", source=tmp_path / "source")
    (page,) = built.html
    assert page == tmp_path / "out" / "day1_test" / "1_x.html"
    html = page.read_text()
    assert html.count("<section") == 2
    assert "What the speaker says." in html
    assert "mjx-container" in html
    assert (page.parent / "figures" / "dot.svg").read_text() == DOT
    assert not list((tmp_path / "out").rglob("*.md"))
    # what a page fetches stands in src, in href of a link to a style, or in url(): nothing of it may be remote
    assert not re.findall(r"""(?:src=["']?|<link[^>]*href=["']?|url\(["']?)(?:https?:)?//[^"')\s]+""", html)
    if find_chromium():
        assert [pdf.read_bytes()[:5] for pdf in built.pdf] == [b"%PDF-"]
    else:
        assert built.pdf == ()


def test_without_node_there_is_one_sentence(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(BadInput, match=r"need Node\.js 18 or newer with npm"):
        tools.install_marp()


def test_without_network_there_is_one_sentence(monkeypatch):
    def fails(command, **options):
        if command[1] == "--version":
            return subprocess.CompletedProcess(command, 0, "v20.1.0\n", "")
        return subprocess.CompletedProcess(command, 1, "", "npm error code ENOTFOUND\nnpm error more\n")

    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(subprocess, "run", fails)
    with pytest.raises(BadInput, match=r"could not be installed \(npm error code ENOTFOUND\); check the network"):
        tools.install_marp()


def test_the_lock_file_names_no_registry():
    assert '"resolved"' not in (tools.HOME / "package-lock.json").read_text()
