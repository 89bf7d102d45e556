"""Decks to HTML, and to PDF where Chromium is there, by one marp process for all of them."""

import os
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


def build(decks: Sequence[Path], out: Path, source: Path = HOME) -> Built:
    """Makes each of `decks` (Markdown under `source`) into `out`, folders and pictures as under `source`.

    Installs marp on first use. BadInput when it cannot, or when marp refuses a deck.
    """
    marp = find_marp() or install_marp()
    chromium = find_chromium()
    shutil.rmtree(out, ignore_errors=True)
    staged = [_stage(deck, out, source) for deck in decks]
    themes = ["--theme-set", str(HOME / "theme"), "--no-config-file"]
    _run([marp, *themes, "--input-dir", out], {})
    if chromium:
        # Our own decks and pictures only: local files may be read, and the sandbox is left out where it cannot start.
        local = ["--pdf", "--allow-local-files", "--browser-path", chromium, "--pdf-outlines", "--parallel", "2"]
        _run([marp, *themes, *local, "--input-dir", out], {"CHROME_NO_SANDBOX": "1"})
    for deck in staged:
        deck.unlink()
    made = [deck.with_suffix(suffix) for suffix in (".html", ".pdf") for deck in staged]
    missing = [path.name for path in made if not path.exists() and (chromium or path.suffix == ".html")]
    if missing:
        raise BadInput(f"marp made no {', '.join(missing)}; run it by hand to see why: {marp} {decks[0]}")
    html = tuple(path for path in made if path.suffix == ".html")
    return Built(html, tuple(path for path in made if path.suffix == ".pdf" and path.exists()))


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


def _run(command: Sequence[Path | str], extra_environment: dict[str, str]) -> None:
    environment = os.environ | extra_environment
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        raise BadInput(f"marp did not finish within {TIMEOUT} s; run `make slides` again.") from None
    if done.returncode:
        last = (done.stderr.strip() or "no message").splitlines()[-1]
        raise BadInput(f"marp could not build the slides: {last}")
