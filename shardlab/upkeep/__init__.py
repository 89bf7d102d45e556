"""For authors: what is made from the syllabus stays in step with it, and a lesson called ready is whole.

`refresh_readme` writes the README's table of lessons, `readme_is_fresh` compares it, `shortcomings` says what a lesson
lacks of its six parts.
"""

from shardlab.upkeep.parts import shortcomings
from shardlab.upkeep.readme import readme_is_fresh, refresh_readme

__all__ = ["readme_is_fresh", "refresh_readme", "shortcomings"]
