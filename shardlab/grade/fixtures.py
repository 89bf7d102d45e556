"""The fixtures of graded tests: `lab` and `seed`."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardlab.grade.runs import COURSE, LABS_ROOT

if TYPE_CHECKING:
    from shardlab.grade.lab import Lab


@pytest.fixture(scope="session")
def labs_root(request: pytest.FixtureRequest) -> Path:
    """The folder that holds the labs/ to grade: the checkout, or a submission's workspace."""
    return request.config.stash[LABS_ROOT]


@pytest.fixture
def lab(request: pytest.FixtureRequest, labs_root: Path) -> "Lab":
    """The lab that this file of tests grades; see `shardlab.grade.lab.Lab`."""
    from shardlab.grade.lab import Lab  # imports torch: not for runs without graded tests

    lesson = request.config.stash[COURSE].lesson_of(request.path)
    if lesson is None:
        pytest.fail(f"{request.path} holds the tests of no lesson in syllabus.toml: there is no lab to run", False)
    return Lab(f"labs.{lesson.day}.{lesson.slug}", labs_root)


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Where the inputs of this test come from: another number for another `--seed` or test id, below 2**32."""
    text = f"{request.config.getoption('seed')}:{request.node.nodeid}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4])
