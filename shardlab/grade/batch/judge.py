"""One submission before its judge: the graded tests, run here, with the learner's code in a sandbox.

The tests are the ones a learner runs; they know nothing of this. What differs is where ranks live, where inputs come
from, and that every case is on record the moment it is decided.
"""

from __future__ import annotations

import hashlib
import hmac
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TextIO

import pytest
from _pytest.runner import runtestprotocol

from shardlab.grade.batch.records import settled
from shardlab.grade.batch.verdicts import Finding, finding_of
from shardlab.grade.gradebook.record import CaseRecord, Verdict
from shardlab.grade.marks import CASE_PROPERTY, EXERCISE
from shardlab.grade.runs import LABS_ROOT
from shardlab.grade.sandbox.level import Level
from shardlab.grade.sandbox.limits import Limits
from shardlab.grade.sandbox.sandbox import Sandbox, open_sandbox
from shardlab.grade.skips import NOT_ATTEMPTED_PROPERTY
from shardlab.ranks.pool import RankPool, all_ranks_on
from shardlab.syllabus import ROOT, Lesson

HANGS = 3  # of one exercise, after which its other cases are not waited for
_HANGING = (Verdict.DEADLOCK, Verdict.TIMEOUT)
PLUGINS_LEFT_OUT = ("cacheprovider", "faulthandler", "nbval", "xdist", "unraisableexception", "threadexception")


Recorder = Callable[[CaseRecord], None]


@dataclass(frozen=True)
class Case:
    """What is to be judged.

    Attributes:
        submission: a folder of clean files that mirrors labs/.
        sha256: of them.
        lessons: whose tests are run.
        level: of the sandbox.
        secret: the course's, from which inputs derive.
        tests: only these node ids; None: all.
    """

    submission: Path
    sha256: str
    lessons: tuple[Lesson, ...]
    level: Level
    secret: bytes
    tests: frozenset[str] | None = None


def inputs_seed(secret: bytes, sha256: str) -> str:
    """Where the inputs of a submission's tests come from: nobody predicts it, and a regrade gets the same.

    The tests add their own ids (`shardlab.grade.fixtures.seed`).
    """
    return hmac.new(secret, sha256.encode(), hashlib.sha256).hexdigest()


def judge(
    case: Case,
    known: Sequence[CaseRecord],
    record: Recorder,
    log: TextIO,
    limits: Limits | None = None,
) -> None:
    """Judge what is not `known` yet, and `record` every case as it ends.

    Args:
        log: what pytest prints.

    Raises:
        RuntimeError: pytest itself did not work.
    """
    court = _Court(case, known, record, limits)
    without = [argument for name in PLUGINS_LEFT_OUT for argument in ("-p", f"no:{name}")]
    tests = [str(lesson.tests) for lesson in case.lessons]
    with TemporaryDirectory(prefix="shardlab-judge-") as scratch, redirect_stdout(log), redirect_stderr(log):
        options = [f"--submission={case.submission}", f"--seed={inputs_seed(case.secret, case.sha256)}"]
        folders = [f"--rootdir={ROOT}", f"--basetemp={Path(scratch) / 'pytest'}"]
        code = pytest.main(["-q", "--tb=short", *without, *options, *folders, *tests], plugins=[court])
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED):
        raise RuntimeError(f"the tests could not be run: pytest ended with {pytest.ExitCode(code).name}")


class _Court:
    """The plugin of one run."""

    def __init__(self, case: Case, known: Sequence[CaseRecord], record: Recorder, limits: Limits | None) -> None:
        self._case = case
        self._record = record
        self._limits = limits
        self._settled = settled(known)
        self._hangs = Counter((each.lesson, each.exercise) for each in known if each.verdict in _HANGING)
        self._findings: dict[str, Finding] = {}
        self._seconds: Counter[str] = Counter()
        self._sandbox: Sandbox | None = None
        self._killed = 0

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Only graded tests, and of them those that are not settled."""
        wanted = self._case.tests
        items[:] = [
            item
            for item in items
            if EXERCISE in item.stash and item.nodeid not in self._settled and (wanted is None or item.nodeid in wanted)
        ]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self, session: pytest.Session) -> Generator[None, Any, Any]:
        """The sandbox is there as long as tests run."""
        place = session.config.stash[LABS_ROOT]
        place.chmod(0o755)  # the ranks are of another user
        with (
            open_sandbox(self._case.level, place, self._limits) as self._sandbox,
            RankPool(enclosure=self._sandbox.enclosure) as pool,
            all_ranks_on(pool),
        ):
            return (yield)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: pytest.Item | None) -> bool:
        exercise = (item.stash[EXERCISE].lesson.id, item.stash[EXERCISE].name)
        if self._hangs[exercise] >= HANGS:
            return self._give(item, Finding(Verdict.TIMEOUT, f"not run: {HANGS} cases of this exercise hung before"))
        finding = self._try(item, nextitem)
        if finding.verdict is Verdict.INFRA:  # a failure of ours gets a second chance
            item._initrequest()
            finding = self._try(item, nextitem)
        self._hangs[exercise] += finding.verdict in _HANGING
        return self._give(item, finding)

    def _try(self, item: pytest.Item, nextitem: pytest.Item | None) -> Finding:
        self._findings.pop(item.nodeid, None)
        runtestprotocol(item, log=False, nextitem=nextitem)
        return self._findings.get(item.nodeid) or Finding(Verdict.INFRA, "the test did not report")

    def _give(self, item: pytest.Item, finding: Finding) -> bool:
        worth = dict(item.user_properties)[CASE_PROPERTY]
        seconds = round(self._seconds.pop(item.nodeid, 0.0), 3)
        lesson, exercise, share = worth["lesson"], worth["exercise"], Fraction(worth["share"])
        found = (finding.verdict, finding.message, seconds, finding.cause, finding.ranks)
        self._record(CaseRecord(lesson, exercise, item.nodeid, share, *found))
        return True

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        self._seconds[item.nodeid] += report.duration
        if report.skipped:
            missing = NOT_ATTEMPTED_PROPERTY in dict(report.user_properties)
            verdict = Verdict.NOT_ATTEMPTED if missing else Verdict.SKIPPED
            self._findings[item.nodeid] = Finding(verdict, str(report.longrepr[2]).removeprefix("Skipped: "))
        elif report.failed:
            found = finding_of(
                call.excinfo.value,
                report.longreprtext,
                in_call=report.when == "call",
                memory_ran_out=self._memory_ran_out(),
            )
            self._findings.setdefault(item.nodeid, found)
        elif report.when == "call":
            self._findings.setdefault(item.nodeid, Finding(Verdict.PASSED))
        return report

    def _memory_ran_out(self) -> bool:
        group = self._sandbox.group if self._sandbox else None
        before, self._killed = self._killed, group.killed_for_memory if group else 0
        return self._killed > before
