"""A picture of a failed call: one lane per rank, how far it came, how it ended, and which rank caused it.

Widths are percent and letters are not scaled, so that it can be read on a phone.
"""

import re
from collections.abc import Sequence

from markupsafe import Markup, escape

from shardlab.grade.gradebook.record import RankRecord
from shardlab.grade.gradebook.text import one_line

MOST_LANES = 16
LANE = 80  # pixels
LEFT, RIGHT = 3, 95  # percent: where tracks begin and end
MIDDLE = 62  # percent: where a rank stopped, when nothing says who came further
LABEL_CHARACTERS = 41  # fit on a phone
POINT_TO_POINT = ("send", "recv")

STATES = {
    "returned": "returned",
    "raised": "raised an error",
    "exited": "left without returning",
    "killed": "was killed",
    "hung": "waits",
    "stopped": "is stopped",
    "unsendable": "result unreadable",
}
GOING_ON, WAITING = ("returned", "unsendable"), ("hung", "stopped")
TICK = '<path class="done" d="M-6 0l4 5 8-10"/>'
CROSS = '<path class="broken" d="M-6-6l12 12M-6 6l12-12"/>'
PAUSE = '<path class="waits" d="M-3-6v12M3-6v12"/>'


def rank_picture(ranks: Sequence[RankRecord], cause: int | None) -> Markup:
    """SVG of `ranks`, the `cause` highlighted; "" without ranks. It takes its colours from the page."""
    if not ranks:
        return Markup()
    shown = _choose(ranks, cause)
    stops = _stops(shown)
    lanes = [_lane(rank, place * LANE, stops[rank.rank], rank.rank == cause) for place, rank in enumerate(shown)]
    said = f"{len(ranks)} ranks" + (f", rank {cause} caused it" if cause is not None else "")
    head = f'<svg class="ranks" role="img" width="100%" height="{len(shown) * LANE}" aria-label="{escape(said)}">'
    return Markup("".join([head, *lanes, "</svg>"]))


def _choose(ranks: Sequence[RankRecord], cause: int | None) -> list[RankRecord]:
    """All ranks, or the first ones and the cause."""
    first = sorted(ranks, key=lambda rank: (rank.rank != cause, rank.rank))[:MOST_LANES]
    return sorted(first, key=lambda rank: rank.rank)


def _stops(ranks: Sequence[RankRecord]) -> dict[int, float | None]:
    """Where on its track, in percent, each rank made its last call: by its number, where all numbers count the same.

    Collectives of a group are numbered alike on all its ranks; messages are not, and all stand in the middle.
    """
    numbers = {rank.rank: re.search(r"#(\d{1,9})\b", rank.last_collective) for rank in ranks}
    alike = not any(rank.last_collective.startswith(POINT_TO_POINT) for rank in ranks)
    most = max((int(number[1]) for number in numbers.values() if number), default=0)
    stops: dict[int, float | None] = {}
    for rank in ranks:
        number = numbers[rank.rank]
        if not rank.last_collective or rank.last_collective == "none":
            stops[rank.rank] = None
        elif number and alike:
            stops[rank.rank] = LEFT + (MIDDLE - LEFT) * (int(number[1]) + 1) / (most + 1)
        else:
            stops[rank.rank] = MIDDLE
    return stops


def _lane(rank: RankRecord, top: int, stop: float | None, is_cause: bool) -> str:
    state = STATES.get(rank.state, rank.state)
    track = top + 34
    kind = "lane cause" if is_cause else "lane"
    parts = [f'<rect class="{kind}" x="0" y="{top + 3}" width="100%" height="{LANE - 6}" rx="8"/>']
    parts.append(_text(f"rank {rank.rank}: {one_line(state, 24)}", top + 21, "who"))
    if is_cause:
        parts.append(f'<text class="blame" x="98%" y="{top + 21}" text-anchor="end">the cause</text>')
    parts += _track(rank.state, track, stop)
    parts.append(_text(rank.last_collective or "no communication yet", top + 54, "call"))
    parts.append(_text(rank.where.removeprefix("labs/"), top + 69, "place"))
    return "".join(parts)


def _track(state: str, y: int, stop: float | None) -> list[str]:
    """The way it came, a dot at its last call, and how it went on from there."""
    came = RIGHT if state in GOING_ON else (stop or MIDDLE)
    parts = [f'<line class="way" x1="{LEFT}%" x2="{came:.1f}%" y1="{y}" y2="{y}"/>']
    if state in WAITING:
        parts.append(f'<line class="way waiting" x1="{came:.1f}%" x2="{RIGHT}%" y1="{y}" y2="{y}"/>')
    if stop is not None:
        parts.append(f'<circle class="last" cx="{stop:.1f}%" cy="{y}" r="5"/>')
    sign, place = (TICK, RIGHT) if state in GOING_ON else (PAUSE, RIGHT) if state in WAITING else (CROSS, came + 4)
    parts.append(f'<svg x="{place:.1f}%" y="{y}" overflow="visible">{sign}</svg>')
    return parts


def _text(text: str, y: int, kind: str) -> str:
    whole = one_line(text)
    cut = whole if len(whole) <= LABEL_CHARACTERS else f"{whole[:18]}…{whole[-(LABEL_CHARACTERS - 19) :]}"
    hover = f"<title>{escape(whole)}</title>" if cut != whole else ""
    return f'<text class="{kind}" x="{LEFT}%" y="{y}">{escape(cut)}{hover}</text>'
