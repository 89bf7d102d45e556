"""The tour: one small GPT on real text, trained by every strategy of the course, side by side.

Strategies are registered in one place, `labs/tour_strategies.py`, each a short function marked with `@strategy`; the
kit loads that module by name and knows no lesson. `shardlab.tour.run` trains them on fresh ranks, checks that their
losses agree, lets one process climb a ladder alone, `labs/tour_ladder.py`, prints tables and writes tour.html.

Every rank imports this package and none of them draws: so `run` is not imported here.
"""

from shardlab.tour.job import Job, Step, strategy
from shardlab.tour.ladder import Rung

__all__ = ["Job", "Rung", "Step", "strategy"]
