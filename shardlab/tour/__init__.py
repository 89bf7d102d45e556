"""The tour: one small GPT on real text, trained by every strategy of the course, side by side.

Strategies are registered in one place, `labs/tour_strategies.py`, each a short function marked with `@strategy`; the
kit loads that module by name and knows no lesson. `run_tour()` trains them on fresh ranks, checks that their losses
agree, prints one table and writes tour.html.
"""

from shardlab.tour.job import Job, Step, strategy
from shardlab.tour.run import run_tour

__all__ = ["Job", "Step", "run_tour", "strategy"]
