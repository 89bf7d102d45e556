"""The lecture slides: Markdown decks under slides/, turned into HTML and PDF by marp.

`Deck` reads and checks one deck; `build` makes all decks into build/slides. Everything works offline once
marp is in slides/node_modules, which `build` sees to on first use.
"""

from shardlab.slides.build import Built, build
from shardlab.slides.deck import Deck
from shardlab.slides.tools import find_chromium, find_marp

__all__ = ["Built", "Deck", "build", "find_chromium", "find_marp"]
