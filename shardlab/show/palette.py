"""The colours of the course. Matplotlib-free, because SVG and HTML use them too."""

RANK_COLOURS = ("#4477AA", "#EE6677", "#228833", "#CCBB44", "#66CCEE", "#AA3377", "#777777", "#DD7711")
"""One per rank, told apart with any colour vision. Source: Paul Tol, SRON/EPS/TN/09-002, "bright"; its light grey is
darker here and an orange makes eight."""

CATEGORY_COLOURS = {
    "forward": "#4477AA",
    "backward": "#EE6677",
    "weight": "#CCBB44",
    "communication": "#228833",
    "optimizer": "#AA3377",
    "input": "#66CCEE",
    "idle": "#DDDDDD",
}
"""What a span of time was spent on, the same in every timeline. "weight" is the weight-gradient half of a backward."""

OTHER_COLOURS = ("#DD7711", "#777777", "#332288", "#999933")
"""For categories that a picture makes up; none of them is taken above."""


def rank_colour(rank: int) -> str:
    """The colour of this rank as #RRGGBB; from rank 8 on they repeat.

    >>> rank_colour(0), rank_colour(9)
    ('#4477AA', '#EE6677')
    """
    return RANK_COLOURS[rank % len(RANK_COLOURS)]


def category_colour(category: str, known: list[str]) -> str:
    """The colour of a category: a fixed one for the course's own, else by its place among the `known` others."""
    if category in CATEGORY_COLOURS:
        return CATEGORY_COLOURS[category]
    others = [name for name in known if name not in CATEGORY_COLOURS]
    return OTHER_COLOURS[others.index(category) % len(OTHER_COLOURS)]


def is_light(colour: str) -> bool:
    """Whether #222222 has more contrast than white on this #RRGGBB (relative luminance of WCAG 2.2)."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.213
