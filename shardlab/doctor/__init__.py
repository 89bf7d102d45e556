"""What works on this machine, what is missing, and the exact command that brings it.

Every check tries the thing itself (opens a namespace, starts a kernel, runs two ranks) instead of looking for a name.
`examine()` yields each check with its finding; `report()` prints them for a person.
"""

from shardlab.doctor.examine import CHECKS, Check, examine
from shardlab.doctor.finding import Finding
from shardlab.doctor.report import report

__all__ = ["CHECKS", "Check", "Finding", "examine", "report"]
