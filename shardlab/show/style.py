"""One matplotlib style, and saving that gives the same bytes for the same figure."""

import io
from pathlib import Path
from typing import TYPE_CHECKING

from shardlab.show.files import write_bytes
from shardlab.show.palette import RANK_COLOURS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK = "#222222"
STYLE = {
    "figure.figsize": (7.0, 4.0),
    "figure.dpi": 110,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 200,
    "font.family": "DejaVu Sans",  # comes with matplotlib, so a picture looks the same on every machine
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 12,
    "axes.labelcolor": INK,
    "axes.edgecolor": "#888888",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": "#E4E4E4",
    "grid.linewidth": 0.8,
    "xtick.color": "#555555",
    "ytick.color": "#555555",
    "text.color": INK,
    "lines.linewidth": 2.0,
    "lines.markersize": 6,
    "legend.frameon": False,
    "svg.hashsalt": "shardlab",  # ids in the file come from this instead of a random number
    "svg.fonttype": "path",
}
FORMATS = (".svg", ".png")


def use_style() -> None:
    """Make every matplotlib figure of this process look like the course's; the n-th colour is that of rank n."""
    import matplotlib

    matplotlib.rcParams.update(STYLE)
    matplotlib.rcParams["axes.prop_cycle"] = matplotlib.cycler(color=RANK_COLOURS)


def save_figure(fig: "Figure", path: Path | str) -> Path:
    """Write a figure, atomically and without date or version inside, so that the same figure is the same file.

    Args:
        path: ends in .svg (slides, pages) or .png; its folder is made.

    Raises:
        ValueError: another ending.
    """
    import matplotlib

    path = Path(path)
    if path.suffix not in FORMATS:
        raise ValueError(f"a figure is saved as {' or '.join(FORMATS)}, got {path.name!r}")
    drawn = io.BytesIO()
    without = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
    with matplotlib.rc_context({"svg.hashsalt": STYLE["svg.hashsalt"]}):
        fig.savefig(drawn, format=path.suffix[1:], metadata=without, bbox_inches="tight", pad_inches=0.1)
    return write_bytes(path, drawn.getvalue())
