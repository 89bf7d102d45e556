"""results.json by the rules of Gradescope's specification."""

import json
import math

import pytest

from shardlab.grade.gradebook.gradescope import results_json
from shardlab.grade.gradebook.record import Verdict

VISIBILITY = {"hidden", "after_due_date", "after_published", "visible"}
FORMATS = {"text", "html", "simple_format", "md", "ansi"}
TOP = {
    "score": float,
    "execution_time": float,
    "output": str,
    "output_format": str,
    "test_output_format": str,
    "test_name_format": str,
    "visibility": str,
    "stdout_visibility": str,
    "extra_data": dict,
    "tests": list,
}
TEST = {
    "score": float,
    "max_score": float,
    "status": str,
    "name": str,
    "number": str,
    "output": str,
    "output_format": str,
    "visibility": str,
}


def check(results: dict) -> None:
    """The specification's fields with its types and values, and nothing else."""
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    _fields(results, TOP)
    assert {results["visibility"], results["stdout_visibility"]} <= VISIBILITY
    assert {results[name] for name in ("output_format", "test_output_format", "test_name_format")} <= FORMATS
    assert math.isclose(results["score"], sum(test["score"] for test in results["tests"]), abs_tol=0.2)
    for test in results["tests"]:
        _fields(test, TEST)
        assert test["status"] in ("passed", "failed")
        assert 0 <= test["score"] <= test["max_score"]
        assert test["visibility"] in VISIBILITY and test["output_format"] in FORMATS
    numbers = [test["number"] for test in results["tests"]]
    assert len(set(numbers)) == len(numbers)


def _fields(found: dict, allowed: dict[str, type]) -> None:
    assert found.keys() <= allowed.keys()
    for name, value in found.items():
        assert isinstance(value, allowed[name]), name


def test_full_marks(standing_of):
    results = results_json(standing_of())
    check(results)
    assert results["score"] == 40
    assert {test["status"] for test in results["tests"]} == {"passed"}
    assert results["visibility"] == "after_published"


def test_a_failure_says_which_test_and_what(standing_of):
    results = results_json(standing_of(broadcast=(Verdict.WRONG, "AssertionError: rank 0 has 1, expected 2: look")))
    check(results)
    (failed,) = [test for test in results["tests"] if test["status"] == "failed"]
    assert (failed["name"], failed["score"], failed["max_score"]) == ("1.3 broadcast", 3, 6)
    assert failed["output"] == "broadcast values (2 ranks): wrong result\nrank 0 has 1, expected 2: look"


def test_what_is_unsettled_is_hidden(standing_of):
    results = results_json(standing_of(broadcast=(Verdict.INFRA, "no cgroup")))
    check(results)
    assert results["visibility"] == "hidden" and {test["visibility"] for test in results["tests"]} == {"hidden"}
    assert results["extra_data"]["unsettled"] and "a person has to look" in results["output"]


def test_nothing_handed_in(absent_of):
    results = results_json(absent_of("s9", "the archive is a bomb"))
    check(results)
    assert results["score"] == 0 and "the archive is a bomb" in results["output"]


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict(standing_of, verdict):
    results = results_json(standing_of(verdict=verdict))
    check(results)
    assert (results["score"] == 40) == (verdict is Verdict.PASSED)


def test_any_text(standing_of, any_text):
    results = results_json(standing_of(name=any_text, problems=[any_text], broadcast=(Verdict.ERROR, any_text)))
    check(results)
    json.dumps(results, ensure_ascii=False).encode()
    assert not any(sign in json.dumps(results) for sign in (r"\u001b", r"\u0000", r"\u202e"))
