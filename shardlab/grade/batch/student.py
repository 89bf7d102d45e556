"""One student's submission, judged in a process of its own that is forked from one with torch imported.

A fresh process for each: nothing a submission's results do to this one reaches the next, and memory does not grow.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from shardlab.grade.batch.judge import Case, judge
from shardlab.grade.batch.records import Records, Subject
from shardlab.ranks.processes import die_with_parent


@dataclass(frozen=True)
class Job:
    """What a judge's process is given.

    Attributes:
        student: id.
        case: what to judge.
        subject, records: whose file to write.
        log: file for what pytest prints.
        scratch: folder for temporary files.
    """

    student: str
    case: Case
    subject: Subject
    records: Path
    log: Path
    scratch: Path


def run(job: Job, forked_from: int) -> None:
    """Judge what is not on record yet.

    Args:
        forked_from: process id of this one's parent: without it this process ends, and its sandbox with it.
    """
    die_with_parent(forked_from)
    tempfile.tempdir = str(job.scratch)
    job.log.parent.mkdir(parents=True, exist_ok=True)
    with Records(job.records, job.subject) as records, job.log.open("a") as log:
        judge(job.case, records.cases, records.add, log)
