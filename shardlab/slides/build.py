"""Decks to HTML, and to PDF where Chromium is there, by one marp process for all of them."""

import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardlab.bad_input import BadInput
from shardlab.slides.tools import HOME, find_chromium, find_marp, install_marp

TIMEOUT = 300  # seconds for all decks; a PDF takes about 3
ASSETS = ("*.svg", "*.png", "*.jpg")


@dataclass(frozen=True)
class Built:
    """What a build made."""

    html: tuple[Path, ...]
    pdf: tuple[Path, ...]  # empty without Chromium


def build(decks: Sequence[Path], out: Path, source: Path = HOME, *, pdf: bool = True) -> Built:
    """Makes each of `decks` (Markdown under `source`) into `out`, folders and pictures as under `source`.

    PDF comes on top unless `pdf` is False or there is no Chromium. Installs marp on first use. BadInput when that
    fails, or when marp refuses a deck.
    """
    marp = find_marp() or install_marp()
    chromium = find_chromium() if pdf else None
    shutil.rmtree(out, ignore_errors=True)
    staged = [_stage(deck, out, source) for deck in decks]
    command = [marp, "--no-config-file", "--theme-set", HOME / "theme", "--input-dir", out]
    _run(command)
    if chromium:  # our own decks only, so local pictures may be read; as root Chromium's sandbox cannot start
        _run([*command, "--pdf", "--allow-local-files", "--browser-path", chromium, "--parallel", "2"])
    for deck in staged:
        deck.unlink()
    html = tuple(deck.with_suffix(".html") for deck in staged)
    return Built(html, tuple(page.with_suffix(".pdf") for page in html if chromium))


def _stage(deck: Path, out: Path, source: Path) -> Path:
    """Copies a deck, and the pictures of its folder, to their place under `out`; returns the deck's copy."""
    target = out / deck.relative_to(source)
    target.parent.mkdir(parents=True, exist_ok=True)
    for pattern in ASSETS:
        for picture in deck.parent.rglob(pattern):
            copy = out / picture.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(picture, copy)
    return Path(shutil.copy(deck, target))


def _run(command: Sequence[Path | str]) -> None:
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        raise BadInput(f"marp did not finish within {TIMEOUT} s; run `make slides` again.") from None
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise BadInput(f"marp could not build the slides: {last}")
