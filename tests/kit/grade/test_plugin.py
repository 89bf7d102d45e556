"""Outside a checkout the plugin is not there."""

import subprocess
import sys


def test_a_foreign_project_keeps_its_own_options_and_fixtures(pytester):
    pytester.makeconftest(
        """
        import pytest

        def pytest_addoption(parser):
            parser.addoption("--seed", type=int)
            parser.addoption("--submission")

        @pytest.fixture
        def lab(pytestconfig):
            return pytestconfig.getoption("seed")
        """
    )
    pytester.makepyfile("def test_theirs(lab): assert lab == 3")
    run = pytester.runpytest_inprocess("-p", "no:nbval", "--seed=3", "--submission=nowhere")
    run.assert_outcomes(passed=1)
    assert "Points" not in run.stdout.str()


def test_the_gate_is_cheap():
    slow = ("torch", "numpy", "rich", "shardlab.grade.lab")
    check = f"import shardlab.grade.plugin, sys; sys.exit(str([name for name in {slow} if name in sys.modules] or ''))"
    found = subprocess.run([sys.executable, "-c", check], capture_output=True, text=True, check=False)
    assert found.stderr.strip() == ""
