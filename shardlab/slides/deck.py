"""A deck as text: its slides, their speaker notes, and what is wrong with it.

Marp's rules (marpit.marp.app): a line `---` after an empty line starts a new slide; an HTML comment is a speaker note
unless it holds a directive such as `_class: lead`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SLIDES_PER_DECK = range(12, 21)
NOTE_WORDS = 15  # a note is read aloud: shorter than this it says nothing
DIRECTIVE = re.compile(
    r"\s*_?(class|paginate|header|footer|theme|style|math|size|headingDivider|color|background\w*)\s*:"
)
COMMENT = re.compile(r"<!--(.*?)-->", re.DOTALL)
PLACEHOLDER = re.compile(r"@@\w+|\bTODO\b")
FENCE = re.compile(r"\s{0,3}(```+|~~~+)")
PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)[^)]*\)")


@dataclass(frozen=True)
class Slide:
    """One slide: its Markdown, and the line of the file it starts on (from 1)."""

    text: str
    line: int

    @property
    def notes(self) -> str:
        """Everything the speaker says on this slide."""
        comments = COMMENT.findall(_without_code(self.text))
        return "\n".join(note.strip() for note in comments if not DIRECTIVE.match(note))


@dataclass(frozen=True)
class Deck:
    """A Markdown file of slides."""

    path: Path

    @cached_property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    @cached_property
    def slides(self) -> tuple[Slide, ...]:
        return tuple(_split(self.text))

    @cached_property
    def settings(self) -> str:
        """The front matter, between the first two `---` lines; empty when there is none."""
        match = re.match(r"---\n(.*?)\n---\n", self.text, re.DOTALL)
        return match.group(1) if match else ""

    def problems(self) -> list[str]:
        """What keeps this deck from being taught, each as one sentence with its line."""
        return [f"{self.path.name}: {problem}" for problem in self._problems()]

    def _problems(self) -> Iterator[str]:
        for setting in ("marp: true", "theme: shardlab", "math: mathjax"):
            if setting not in self.settings.splitlines():
                yield f"the front matter lacks `{setting}`"
        if len(self.slides) not in SLIDES_PER_DECK:
            allowed = f"{SLIDES_PER_DECK[0]} to {SLIDES_PER_DECK[-1]}"
            yield f"{len(self.slides)} slides, a deck has {allowed}"
        for number, slide in enumerate(self.slides, start=1):
            for problem in _slide_problems(slide):
                yield f"slide {number} (line {slide.line}): {problem}"
        for placeholder in PLACEHOLDER.findall(_without_code(self.text)):
            yield f"{placeholder} is still to be filled in"
        for picture in PICTURE.findall(_without_code(self.text)):
            if "://" in picture:
                yield f"{picture} is fetched from the network, commit the picture instead"
            elif not (self.path.parent / picture).is_file():
                yield f"there is no picture {picture}"


def _slide_problems(slide: Slide) -> Iterator[str]:
    words = len(slide.notes.split())
    if words < NOTE_WORDS:
        yield f"the speaker note has {words} words, at least {NOTE_WORDS} are read aloud"
    elif not slide.notes.rstrip().endswith((".", "?", "!")):
        yield "the speaker note does not end in a full sentence"
    if re.search(r"\n *[^\s|#>-][^\n]*\n---\s*(\n|$)", _without_code(slide.text)):
        yield "`---` right under text makes a heading, not a slide; put an empty line before it"
    if re.search(r"^\s*[-*0-9.]+ .*\$\$", _without_code(slide.text), re.MULTILINE):
        yield "`$$` inside a list item is printed raw; use `$` or put the formula on its own"


def _split(text: str) -> Iterator[Slide]:
    lines = text.splitlines()
    start = lines.index("---", 1) + 1 if lines[:1] == ["---"] and "---" in lines[1:] else 0
    fence = ""
    first = start
    for index in range(start, len(lines)):
        match = FENCE.match(lines[index])
        if match and not fence:
            fence = match.group(1)
        elif match and match.group(1).startswith(fence):
            fence = ""
        elif not fence and lines[index].rstrip() == "---" and not lines[index - 1].strip():
            yield Slide("\n".join(lines[first:index]), first + 1)
            first = index + 1
    yield Slide("\n".join(lines[first:]), first + 1)


def _without_code(text: str) -> str:
    """`text` with fenced blocks and inline code blanked, so that examples are not taken for the real thing."""
    text = re.sub(r"^(```+|~~~+).*?^\1\s*$", "", text, flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "", text)
