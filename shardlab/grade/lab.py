"""The `lab` of a graded test: runs the learner's functions on ranks and brings back what they did.

Two ideas carry it. The process that judges never imports labs: ranks do (`rank_side`), and only plain data comes
back. And whatever goes wrong there becomes one message that a learner can act on.
"""

import io
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from shardlab.grade import rank_side
from shardlab.grade.results import RankResult, RankResults
from shardlab.observe import Traffic
from shardlab.ranks import RankError, run_ranks

OUTPUT_CHARACTERS = 20_000  # of what ranks print in one call, shown with a failing test: the end of it
REFUSAL_SECONDS = 10.0  # for calls that must raise before they communicate: a rank that goes on waits in vain


class RanksFailed(pytest.fail.Exception):
    """A test failed because its ranks did.

    Attributes:
        error: what became of them.
    """

    def __init__(self, message: str, error: RankError) -> None:
        super().__init__(message)
        self.error = error


class Lab:
    """One lesson's lab.

    Args:
        module: such as ``"labs.day1_one_gpu_to_many.collectives"``.
        labs_root: the folder that holds the labs/ to import it from.
    """

    def __init__(self, module: str, labs_root: Path) -> None:
        self.module = module
        self.labs_root = labs_root

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> Any:
        """The value of the lab's function `name`, called in one process without a process group."""
        __tracebackhide__ = True
        return self._alone(None, name, args, kwargs)["value"]

    def expect_error(self, error: type[Exception], name: str, /, *args: Any, **kwargs: Any) -> str:
        """The message of the `error` that the function must raise; the test fails when it raises none or another."""
        __tracebackhide__ = True
        outcome = self._alone(error, name, args, kwargs)
        if outcome["error"] is None:
            pytest.fail(_no_error(name, outcome, error))
        return outcome["error"]

    def on_ranks(self, ranks: int, timeout: float = 30) -> "OnRanks":
        """This lab on a group of `ranks` ranks; a call may take `timeout` seconds."""
        return OnRanks(self, ranks, timeout)

    def _alone(self, expected: type[Exception] | None, name: str, args: Sequence[Any], kwargs: dict) -> dict:
        __tracebackhide__ = True
        what = _what(name, expected)
        (outcome,) = self._run(rank_side.call_alone, 1, self._job(expected), name, args, kwargs, what=what)
        return outcome

    def _job(self, expected: type[Exception] | None = None) -> rank_side.Job:
        return str(self.labs_root), self.module, expected

    def _run(self, function: Callable[..., Any], ranks: int, *args: Any, what: str, **options: Any) -> list[Any]:
        """`run_ranks`; a call that fails fails the test, with the learner's error and not with ours."""
        __tracebackhide__ = True
        printed = io.StringIO()
        try:
            with redirect_stdout(printed):
                return run_ranks(function, ranks, *args, **options)
        except RankError as error:
            where = f"on {ranks} ranks" if ranks > 1 else "in one process"
            message = f"{what} {where}: {error}".replace(f"{self.labs_root}/", "")
            raise RanksFailed(message, error) from None
        finally:
            _print_end(printed.getvalue())


class OnRanks:
    """The lab on a group of ranks: every call gets fresh processes."""

    def __init__(self, lab: Lab, ranks: int, timeout: float) -> None:
        self._lab = lab
        self._ranks = ranks
        self._timeout = timeout

    def call(self, name: str, /, per_rank: Sequence[Any] | None = None, *args: Any, **kwargs: Any) -> RankResults:
        """Call the lab's function `name` on every rank.

        Args:
            per_rank: rank r's own first argument, or all of its own as a tuple; they come before `args`.
            args, kwargs: the same on every rank.
        """
        __tracebackhide__ = True
        shared = (self._lab._job(), name, args, kwargs)
        return self._results(rank_side.call_function, shared, per_rank, what=name)

    def run(self, driver: Callable[..., Any], *args: Any, per_rank: Sequence[Any] | None = None) -> RankResults:
        """Call `driver(lab_module, *args)` on every rank, or with `per_rank` `driver(lab_module, per_rank[r], *args)`.

        Args:
            driver: a function at the top level of tests/DAY/drivers_TOPIC.py.
        """
        __tracebackhide__ = True
        own = None if per_rank is None else [(item,) for item in per_rank]
        return self._results(rank_side.run_driver, (self._lab._job(), driver, args), own, what=driver.__name__)

    def expect_error(
        self, error: type[Exception], name: str, /, per_rank: Sequence[Any] | None = None, *args: Any, **kwargs: Any
    ) -> list[str]:
        """The messages of the `error` that every rank must raise before it communicates."""
        __tracebackhide__ = True
        shared = (self._lab._job(error), name, args, kwargs)
        what, timeout = _what(name, error), min(self._timeout, REFUSAL_SECONDS)
        outcomes = self._outcomes(rank_side.call_function, shared, per_rank, what, timeout)
        for rank, outcome in enumerate(outcomes):
            if outcome["error"] is None:
                pytest.fail(f"rank {rank}: {_no_error(name, outcome, error)}")
            if calls := Traffic.from_data(outcome["traffic"]).calls:
                pytest.fail(
                    f"rank {rank}: {name} called {calls[0]} before it raised {error.__name__}: bad input is refused "
                    "before any communication, else ranks with good input wait for ever"
                )
        return [outcome["error"] for outcome in outcomes]

    def _results(
        self, function: Callable[..., Any], shared: tuple, per_rank: Sequence[Any] | None, what: str
    ) -> RankResults:
        __tracebackhide__ = True
        outcomes = self._outcomes(function, shared, per_rank, what, self._timeout)
        return RankResults(
            [
                RankResult(rank, outcome["value"], outcome["arguments"], Traffic.from_data(outcome["traffic"]))
                for rank, outcome in enumerate(outcomes)
            ]
        )

    def _outcomes(
        self, function: Callable[..., Any], shared: tuple, per_rank: Sequence[Any] | None, what: str, timeout: float
    ) -> list[dict]:
        __tracebackhide__ = True
        own = [()] * self._ranks if per_rank is None else [_tuple(item) for item in per_rank]
        return self._lab._run(function, self._ranks, *shared, per_rank=own, timeout=timeout, what=what)


def _tuple(item: Any) -> tuple:
    return item if isinstance(item, tuple) else (item,)


def _what(name: str, expected: type[Exception] | None) -> str:
    return f"{name}, which must raise {expected.__name__}," if expected else name


def _no_error(name: str, outcome: dict, error: type[Exception]) -> str:
    return f"{name} returned {outcome['value']!r}, it should have raised {error.__name__}"


def _print_end(text: str) -> None:
    """Print the last part of `text`: a rank that prints without end must not drown the message of the failure."""
    if len(text) > OUTPUT_CHARACTERS:
        print(f"... {len(text) - OUTPUT_CHARACTERS:,} characters of output before this are not shown")
    print(text[-OUTPUT_CHARACTERS:], end="")
