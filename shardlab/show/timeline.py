"""Who did what when: one lane per rank or stage, one bar per span of time, as SVG or as an HTML page."""

import math
from dataclasses import dataclass
from html import escape
from pathlib import Path

from shardlab.show.files import write_text
from shardlab.show.timeline_svg import draw


@dataclass(frozen=True)
class Span:
    """Something that lasted from `start` to `end` in a lane. `detail` shows on hover only."""

    lane: str
    start: float
    end: float
    label: str
    category: str
    detail: str = ""


PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ margin: 2rem auto; max-width: 72rem; padding: 0 1rem; background: #fff; color: #222;
  font: 16px/1.5 system-ui, "DejaVu Sans", sans-serif; }}
svg {{ width: 100%; height: auto; }}
p {{ color: #555; max-width: 44rem; margin-left: 1rem; }}
</style>
</head>
<body>
{pictures}
<p>{note}</p>
</body>
</html>
"""


POINT_AT_A_BAR = "Rest the pointer on a bar to see what it is and how long it took."


def save_timelines(
    path: Path | str,
    title: str,
    timelines: list["Timeline"],
    note: str = POINT_AT_A_BAR,
    play_seconds: float | None = None,
) -> Path:
    """Write several timelines to one .html page, one below the other, atomically; they play together if they play."""
    pictures = "\n".join(timeline.svg(play_seconds) for timeline in timelines)
    return write_text(Path(path), PAGE.format(title=escape(title), pictures=pictures, note=escape(note)))


class Timeline:
    """Lanes of labelled spans, drawn to scale; spans of one lane that overlap are stacked, so that overlap is seen.

    Example:
        >>> timeline = Timeline("One micro-batch through two stages", unit="ms")
        >>> timeline.add("stage 0", 0, 2, "F0", "forward")
        >>> timeline.add("stage 1", 2, 4, "F0", "forward")
        >>> timeline.save("two_stages.svg")  # doctest: +SKIP

    Args:
        title: what the picture shows, in a line.
        unit: of every start and end, such as "ms"; written on the axis and in the hover text.
    """

    def __init__(self, title: str, unit: str = "ms") -> None:
        self.title = title
        self.unit = unit
        self.spans: list[Span] = []
        self.lanes: list[str] = []

    def add_lane(self, lane: str) -> None:
        """Reserve the next place from the top for this lane, also when nothing happens in it. Twice is once."""
        if lane not in self.lanes:
            self.lanes.append(lane)

    def add(self, lane: str, start: float, end: float, label: str, category: str, detail: str = "") -> None:
        """Add a span; the lane is made at its first span.

        Args:
            lane: such as "rank 0".
            start, end: in the timeline's unit, start <= end.
            label: written on the bar where it fits, and always in the hover text.
            category: decides the colour and stands in the legend; "forward", "backward", "communication", ... of
                `CATEGORY_COLOURS` look the same in every picture.
            detail: more for the hover text.

        Raises:
            ValueError: a span that ends before it starts, or a time that is not finite.
        """
        if not (math.isfinite(start) and math.isfinite(end) and start <= end):
            raise ValueError(f"span {label!r} in lane {lane!r} cannot last from {start} to {end} {self.unit}")
        self.add_lane(lane)
        self.spans.append(Span(lane, start, end, label, category, detail))

    def svg(self, play_seconds: float | None = None) -> str:
        """The picture as a standalone SVG document, the same text for the same spans.

        Args:
            play_seconds: let it play, over and over, from the first moment to the last in this time; None: it stands.

        Raises:
            ValueError: there is no span to draw, or no time to play in.
        """
        return draw(self, play_seconds)

    def html(self, note: str = POINT_AT_A_BAR) -> str:
        """The picture as a standalone page with hover texts, and a note in plain words below it."""
        return PAGE.format(title=escape(self.title), pictures=self.svg(), note=escape(note))

    def save(self, path: Path | str) -> Path:
        """Write the picture to a .svg file or the page to a .html file, atomically.

        Raises:
            ValueError: another ending.
        """
        writers = {".svg": self.svg, ".html": self.html}
        path = Path(path)
        if path.suffix not in writers:
            raise ValueError(f"a timeline is saved as {' or '.join(writers)}, got {path.name!r}")
        return write_text(path, writers[path.suffix]())

    def _repr_svg_(self) -> str:
        """How a notebook shows a timeline."""
        return self.svg()
