"""One look for everything the course shows.

Figures in one matplotlib style with a fixed colour per rank (`use_style`, `rank_colour`, `save_figure`), schedules
as SVG or HTML (`Timeline`), tables and a progress bar on rank 0 (`table`, `progress`), and results as JSON with
machine, versions and command (`write_results`). Pictures and pages need no network and come out the same, byte for
byte, for the same numbers.
"""

from shardlab.show.files import write_text
from shardlab.show.palette import CATEGORY_COLOURS, RANK_COLOURS, category_colour, rank_colour
from shardlab.show.progress import progress
from shardlab.show.rank_zero import is_rank_zero
from shardlab.show.results import usable_cores, write_results
from shardlab.show.style import save_figure, use_style
from shardlab.show.tables import table
from shardlab.show.timeline import Span, Timeline, save_timelines

__all__ = [
    "CATEGORY_COLOURS",
    "RANK_COLOURS",
    "Span",
    "Timeline",
    "category_colour",
    "is_rank_zero",
    "progress",
    "rank_colour",
    "save_figure",
    "save_timelines",
    "table",
    "usable_cores",
    "use_style",
    "write_results",
    "write_text",
]
