"""Intake: strangers' files become submissions that are safe to lay beside a checkout, or sentences that say why not.

`read_roster` and `find_submissions` say whose is what; `take_in` unpacks one submission, runs nothing of it and
copies nothing but lab files.
"""

from shardlab.grade.intake.archives import unpack
from shardlab.grade.intake.finding import Found, find_submissions
from shardlab.grade.intake.roster import read_roster
from shardlab.grade.intake.submissions import Submission, take_in

__all__ = ["Found", "Submission", "find_submissions", "read_roster", "take_in", "unpack"]
