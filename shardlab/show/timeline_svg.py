"""Drawing a timeline: pure functions from spans to SVG text."""

import math
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from shardlab.show.palette import category_colour, is_light

if TYPE_CHECKING:
    from shardlab.show.timeline import Span, Timeline

WIDTH = 960
MARGIN = 16
BAR = 26  # height of one row of bars
ROW_GAP = 3
LANE_GAP = 10
TITLE_HEIGHT = 30
LEGEND_HEIGHT = 26
AXIS_HEIGHT = 42
CHARACTER = 7.2  # width of a character at 12 px, rounded up
STYLE = """
.timeline text { font: 12px "DejaVu Sans", Verdana, "Helvetica Neue", Arial, sans-serif; fill: #222; }
.timeline .title { font-size: 15px; font-weight: bold; }
.timeline .lane { text-anchor: end; }
.timeline .tick { text-anchor: middle; fill: #555; }
.timeline .label { text-anchor: middle; font-size: 11px; pointer-events: none; }
.timeline .bar { stroke: #fff; stroke-width: 1; }
.timeline .bar:hover { stroke: #222; stroke-width: 2; }
"""  # every rule begins with .timeline: styles of an SVG inside a page hold for the whole page
PLAY_STYLE = """
.timeline .curtain { fill: #fff; opacity: 0.85; pointer-events: none; transform-box: fill-box;
  transform-origin: right; animation: timeline-curtain linear infinite; }
.timeline .hand { fill: #222; pointer-events: none; animation: timeline-hand linear infinite; }
@keyframes timeline-curtain { 0% { transform: scaleX(1); } 80%, 100% { transform: scaleX(0); } }
@keyframes timeline-hand { 0% { transform: none; } 80%, 100% { transform: translateX(var(--timeline-way)); } }
@media print, (prefers-reduced-motion: reduce) { .timeline .curtain, .timeline .hand { display: none; } }
"""  # what is named for all of a page, keyframes and a variable, is named after the timeline


@dataclass(frozen=True)
class Scale:
    """From time to pixels: `begin` lies at `left`, `end` at `right`."""

    begin: float
    end: float
    left: float
    right: float

    def __call__(self, time: float) -> float:
        share = (time - self.begin) / (self.end - self.begin) if self.end > self.begin else 0.0
        return self.left + share * (self.right - self.left)


def draw(timeline: "Timeline", play_seconds: float | None = None) -> str:
    """The timeline as a standalone SVG document; see `Timeline.svg`."""
    if not timeline.spans:
        raise ValueError("the timeline has no span yet: add() some before drawing it")
    if play_seconds is not None and not 0 < play_seconds < math.inf:
        raise ValueError(f"play_seconds is the time that playing takes, above 0: got {play_seconds}")
    left = MARGIN + math.ceil(CHARACTER * max(len(lane) for lane in timeline.lanes)) + 10
    scale = Scale(
        begin=min(0.0, min(span.start for span in timeline.spans)),
        end=max(span.end for span in timeline.spans),
        left=left,
        right=WIDTH - MARGIN - 14,
    )
    top = MARGIN + TITLE_HEIGHT + LEGEND_HEIGHT
    bands, bars, bottom = lanes(timeline, scale, top)
    height = bottom + AXIS_HEIGHT
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}" role="img" aria-label="{escape(timeline.title)}">',
            f"<style>{STYLE}</style>",
            f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
            f'<text class="title" x="{MARGIN}" y="{MARGIN + 15}">{escape(timeline.title)}</text>',
            *legend(timeline),
            *bands,
            *axis(scale, top, bottom, timeline.unit),
            *bars,
            *([] if play_seconds is None else curtain(scale, top, bottom, play_seconds)),
            "</svg>",
        ]
    )


def lanes(timeline: "Timeline", scale: Scale, top: int) -> tuple[list[str], list[str], int]:
    """Background and name of every lane, the bars, and where the last lane ends."""
    bands, bars, y = [], [], top
    for lane in timeline.lanes:
        rows = stack([span for span in timeline.spans if span.lane == lane])
        height = max(1, len(rows)) * (BAR + ROW_GAP) - ROW_GAP
        width = scale.right - scale.left
        bands.append(f'<rect x="{scale.left}" y="{y}" width="{width}" height="{height}" fill="#F3F4F6"/>')
        bands.append(f'<text class="lane" x="{scale.left - 10}" y="{y + height / 2 + 4:g}">{escape(lane)}</text>')
        for row, members in enumerate(rows):
            bars += [bar(span, scale, y + row * (BAR + ROW_GAP), timeline) for span in members]
        y += height + LANE_GAP
    return bands, bars, y - LANE_GAP


def categories(timeline: "Timeline") -> list[str]:
    """The categories in the order in which they first appear."""
    return list(dict.fromkeys(span.category for span in timeline.spans))


def legend(timeline: "Timeline") -> list[str]:
    """A swatch and a name per category, in a line below the title."""
    parts, x, y = [], MARGIN, MARGIN + TITLE_HEIGHT
    known = categories(timeline)
    for category in known:
        colour = category_colour(category, known)
        parts.append(f'<rect x="{x}" y="{y - 6}" width="12" height="12" rx="2" fill="{colour}"/>')
        parts.append(f'<text x="{x + 18}" y="{y + 4}">{escape(category)}</text>')
        x += 18 + math.ceil(CHARACTER * len(category)) + 20
    return parts


def axis(scale: Scale, top: int, bottom: int, unit: str) -> list[str]:
    """Vertical lines and numbers at the ticks; the last number carries the unit."""
    parts, ticks = [], nice_ticks(scale.begin, scale.end)
    for tick in ticks:
        x, name = scale(tick), f"{tick:g}" + (f" {escape(unit)}" if tick == ticks[-1] else "")
        parts.append(
            f'<line x1="{x:.2f}" x2="{x:.2f}" y1="{top - 4}" y2="{bottom + 4}" '
            'stroke="#C9CDD3" stroke-dasharray="2 3"/>'
        )
        parts.append(f'<text class="tick" x="{x:.2f}" y="{bottom + 20}">{name}</text>')
    return parts


def bar(span: "Span", scale: Scale, y: int, timeline: "Timeline") -> str:
    """One span: a rectangle at least a pixel wide, its label where it fits, and the hover text."""
    colour = category_colour(span.category, categories(timeline))
    left = scale(span.start)
    width = max(1.0, scale(span.end) - left)
    hover = f"{span.label} ({span.category}), {span.lane}: {span.start:g} to {span.end:g} {timeline.unit}, "
    hover += f"{span.end - span.start:g} {timeline.unit}" + (f"\n{span.detail}" if span.detail else "")
    drawn = (
        f'<rect class="bar" x="{left:.2f}" y="{y}" width="{width:.2f}" height="{BAR}" rx="3" fill="{colour}">'
        f"<title>{escape(hover)}</title></rect>"
    )
    if width < CHARACTER * len(span.label) + 4:
        return drawn
    ink = "#222" if is_light(colour) else "#fff"
    return drawn + (
        f'<text class="label" x="{left + width / 2:.2f}" y="{y + BAR / 2 + 4:g}" style="fill:{ink}">'
        f"{escape(span.label)}</text>"
    )


def curtain(scale: Scale, top: int, bottom: int, seconds: float) -> list[str]:
    """What plays the picture: it hides the future, and a hand at its edge moves on. A fifth of the time it rests."""
    way, height = scale.right - scale.left, bottom - top
    place = f'y="{top}" height="{height}" x="{scale.left}"'
    return [
        f"<style>{PLAY_STYLE}</style>",
        f'<rect class="curtain" {place} width="{way}" style="animation-duration:{seconds:g}s"/>',
        f'<rect class="hand" {place} width="2" style="animation-duration:{seconds:g}s;--timeline-way:{way}px"/>',
    ]


def stack(spans: list["Span"]) -> list[list["Span"]]:
    """Rows of spans that do not overlap: each span goes to the first row that is free at its start."""
    rows: list[list[Span]] = []
    for span in sorted(spans, key=lambda span: (span.start, span.end)):
        free = next((row for row in rows if row[-1].end <= span.start), None)
        if free is None:
            rows.append([span])
        else:
            free.append(span)
    return rows


def nice_ticks(begin: float, end: float, about: int = 8) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `begin` up to `end`, about `about` of them.

    >>> nice_ticks(0.0, 7.3)
    [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]
    """
    if end <= begin:
        return [begin]
    rough = (end - begin) / about
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * (1 - 1e-9))
    return [round(index * step, 12) for index in range(math.ceil(begin / step), math.floor(end / step + 1e-9) + 1)]
