"""Notebooks under nbval: skipped from the first exercise nobody has written, run on the labs of a submission."""

import json

import pytest

pytestmark = pytest.mark.slow  # each run starts a kernel that imports torch

CHECKED = {"source": "# NBVAL_CHECK_OUTPUT\n1 + 1", "outputs": "2"}


def write_notebook(course, *cells: str | dict) -> None:
    course.write(
        "notebooks/day1_small/1_sums.ipynb",
        json.dumps(
            {
                "cells": [_cell(cell if isinstance(cell, dict) else {"source": cell}) for cell in cells],
                "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
                "nbformat": 4,
                "nbformat_minor": 4,
            }
        ),
    )


def _cell(cell: dict) -> dict:
    result = {"output_type": "execute_result", "data": {"text/plain": cell.get("outputs")}, "metadata": {}}
    outputs = [{**result, "execution_count": 1}] if "outputs" in cell else []
    return {"cell_type": "code", "source": cell["source"], "outputs": outputs, "metadata": {}, "execution_count": 1}


def run(course, *arguments: str) -> pytest.RunResult:
    return course.pytester.runpytest_subprocess("-rs", "--nbval-lax", "notebooks", *arguments)


def test_a_notebook_stops_at_the_first_exercise_that_is_missing(course):
    write_notebook(
        course,
        CHECKED,
        "import torch\nfrom labs.day1_small.sums import all_sum\nfrom shardlab.ranks import run_ranks",
        "run_ranks(lambda: all_sum(torch.ones(1)), 2)",
        "raise KeyError('this builds on the cell before')",
    )
    outcome = run(course)
    outcome.assert_outcomes(passed=2, skipped=2)
    outcome.stdout.fnmatch_lines(
        [
            "*double*0 of 3*not attempted: open labs/day1_small/sums.py*",
            "*all_sum*0 of 5*not attempted: open labs/day1_small/sums.py*",
            "*Average*0 of 3*not attempted: open labs/day1_small/sums.py*",
            "SKIPPED [[]2] labs/*/sums.py:*not attempted: open labs/day1_small/sums.py (all_sum), 0 of 5 points",
        ]
    )


def test_a_kernel_takes_the_labs_of_the_submission(course):
    write_notebook(
        course,
        "import labs.day1_small.sums as lab\nassert lab.MINE == 1",
        "from shardlab.ranks import run_ranks\nassert run_ranks(lambda: lab.double([2]), 1) == [[4]]",
    )
    run(course, course.submit("MINE = 1")).assert_outcomes(passed=2)


def test_any_other_error_and_any_other_output_fail(course):
    write_notebook(course, {**CHECKED, "outputs": "3"}, "raise NotImplementedError('double (lesson 1.1)')", "1")
    run(course).assert_outcomes(failed=2, passed=1)
