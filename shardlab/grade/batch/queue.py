"""Processes that judge, a few at a time, each for one student; what becomes of them is told as it happens."""

from __future__ import annotations

import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from multiprocessing import connection, get_context
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess

from shardlab.grade.batch import student
from shardlab.grade.batch.student import Job

ATTEMPTS = 2  # of a judge that ended before its work was done, which is a failure of ours
SUBMISSION_SECONDS = 3 * 3600.0  # the longest a submission may take: many times the course on a slow machine
TICK = 0.5


def forking_server() -> BaseContext:
    """Processes forked from a single-threaded one that has imported torch and the judge: no import for each."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["shardlab.grade.batch.student"])
    return context


def run_all(jobs: Sequence[Job], slots: int, context: BaseContext, ended: Callable[[Job, str], None]) -> None:
    """Run every job, at most `slots` at a time; `ended` is called for each with "" or why it was given up.

    Ctrl-C, or an error in `ended`, ends all that run.
    """
    waiting, running = deque(jobs), {}
    attempts: Counter[str] = Counter()
    try:
        while waiting or running:
            while waiting and len(running) < slots:
                job = waiting.popleft()
                attempts[job.student] += 1
                running[_start(job, context)] = (job, time.monotonic() + SUBMISSION_SECONDS)
            connection.wait([process.sentinel for process in running], timeout=TICK)
            for process, (job, deadline) in list(running.items()):
                if process.is_alive() and time.monotonic() < deadline:
                    continue
                problem = _problem(process)
                del running[process]
                if problem and attempts[job.student] < ATTEMPTS:
                    waiting.append(job)
                else:
                    ended(job, problem)
    finally:
        for process in running:
            process.kill()
            process.join()


def _start(job: Job, context: BaseContext) -> BaseProcess:
    process = context.Process(target=_run, args=(job,), name=f"shardlab judge of {job.student}")
    process.start()
    return process


def _run(job: Job) -> None:
    student.run(job, os.getppid())


def _problem(process: BaseProcess) -> str:
    """Why a process that is over, or over its time, did not do its work; "" if it did."""
    if process.is_alive():
        process.kill()
        process.join()
        return f"it took longer than {SUBMISSION_SECONDS / 3600:g} hours"
    process.join()
    return "" if process.exitcode == 0 else f"its judge ended with exit code {process.exitcode}"
