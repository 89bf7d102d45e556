"""A small course to grade: one day, one lesson, three exercises."""

import textwrap
from pathlib import Path

import pytest
import torch.distributed.tensor  # noqa: F401  # what runs inside a test import, pytester forgets; torch loads once only

import shardlab.grade.lab  # noqa: F401  # the warm parent of the ranks, kept from one run to the next
from shardlab.grade.release import release

collect_ignore = ["submissions"]  # strangers' files: some look like tests, or like a conftest.py

SYLLABUS = """
[[day]]
slug = "day1_small"
title = "A small day"

[[day.lesson]]
id = "1.1"
slug = "sums"
title = "Sums"
hours = 1
status = "ready"

[[day.lesson]]
id = "1.2"
slug = "products"
title = "Products"
hours = 1
status = "planned"
"""

SOLUTION = '''
"""Sums on ranks."""

import torch
import torch.distributed as dist


def double(values: list[int]) -> list[int]:
    # BEGIN SOLUTION
    if not values:
        raise ValueError("no values to double")
    return [2 * value for value in values]
    # END SOLUTION


def all_sum(tensor: torch.Tensor) -> None:
    """In place."""
    # BEGIN SOLUTION
    if tensor.dtype == torch.bool:
        raise ValueError("bool cannot be added")
    dist.all_reduce(tensor)
    # END SOLUTION


class Average:
    """Mean over ranks of what was added."""

    def __init__(self) -> None:
        self.total = torch.zeros(1)

    def add(self, value: float) -> None:
        # BEGIN SOLUTION
        self.total += value
        # END SOLUTION

    def over_ranks(self) -> float:
        # BEGIN SOLUTION
        all_sum(self.total)
        return self.total.item() / dist.get_world_size()
        # END SOLUTION
'''

TESTS = """
import drivers_sums
import pytest
import torch
from torch.testing import assert_close

from shardlab.grade import exercise


@exercise("1.1", "double", points=2)
def test_doubles(lab):
    assert lab.call("double", [1, 2]) == [2, 4]


@exercise("1.1", "double", points=1)
def test_refuses_nothing(lab):
    assert "no values" in lab.expect_error(ValueError, "double", [])


@exercise("1.1", "all_sum", points=4)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_gets_the_sum(lab, ranks):
    inputs = [torch.arange(3.0) + rank for rank in range(ranks)]
    result = lab.on_ranks(ranks).call("all_sum", inputs)
    for rank in range(ranks):
        assert_close(result[rank].tensor, sum(inputs))
    assert result.traffic.count(rank=0, op="all_reduce") == 1


@exercise("1.1", "all_sum", points=1)
def test_refuses_bool(lab):
    messages = lab.on_ranks(2).expect_error(ValueError, "all_sum", [torch.ones(2, dtype=torch.bool)] * 2)
    assert all("bool" in message for message in messages)


@exercise("1.1", "Average", points=3)
def test_average(lab):
    result = lab.on_ranks(2).run(drivers_sums.average, 10.0, per_rank=[1.0, 2.0])
    assert [rank.value for rank in result] == [11.5, 11.5]
"""

DRIVERS = """
def average(lab, shared, own):
    mean = lab.Average()
    mean.add(shared)
    mean.add(own)
    return mean.over_ranks()
"""


class Course:
    """A checkout of the small course, in the folder pytest is going to run in."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.root = pytester.path
        self.write("syllabus.toml", SYLLABUS)
        self.write("pyproject.toml", '[tool.pytest.ini_options]\ntestpaths = ["tests"]\naddopts = "--strict-markers"\n')
        self.write("labs/__init__.py", "")
        self.write("labs/day1_small/__init__.py", "")
        self.write("labs/day1_small/run_sums.py", "")
        self.write("solutions/day1_small/sums.py", SOLUTION)
        self.write("tests/day1_small/test_sums.py", TESTS)
        self.write("tests/day1_small/drivers_sums.py", DRIVERS)
        release(self.root)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(textwrap.dedent(text).lstrip("\n"))
        return file

    def submit(self, overrides: str = "", name: str = "submission") -> str:
        """A submission: the solution, and at its end the definitions that replace some of its own."""
        self.write(f"{name}/day1_small/sums.py", f"{textwrap.dedent(SOLUTION)}\n\n{textwrap.dedent(overrides)}")
        return f"--submission={name}"

    def run(self, *arguments: str) -> pytest.RunResult:
        """pytest inside this process: it shares torch and the warm parent of the ranks with the test."""
        return self.pytester.runpytest_inprocess("-p", "no:nbval", "-p", "no:xdist", "-rs", *arguments)


@pytest.fixture
def course(pytester: pytest.Pytester) -> Course:
    return Course(pytester)
