"""For all tests: `pytester`, which runs pytest inside pytest (the kit's tests of the grading plugin), and fair shares
of the tests for the workers of pytest-xdist.
"""

from typing import Any

import pytest

pytest_plugins = ["pytester"]
WRONG_SOLUTIONS = "test_wrong_solutions.py"
OWN_THE_MACHINE = ("sandbox/", "batch/", "test_corpus.py")  # below tests/kit/grade: they count sandboxes left over


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """A file for each worker in turn, as ``--dist loadfile``; of the wrong solutions, which are most, a lesson.

    One worker gets all tests that look for sandboxes on the machine: at a time there must be only theirs.
    """
    from xdist.scheduler import LoadFileScheduling

    class LoadFileOrLesson(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            if file.removeprefix("tests/kit/grade/").startswith(OWN_THE_MACHINE):
                return "tests/kit/grade/sandboxes"
            return nodeid.rpartition("/")[0] if file.endswith(WRONG_SOLUTIONS) else file

    return LoadFileOrLesson(config, log) if config.getoption("dist") == "loadfile" else None
