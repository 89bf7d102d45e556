"""Labs made from solutions: what is cut, how it is named, where the import goes, and what is refused."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from shardlab.grade.imports import with_import
from shardlab.grade.release import ReleaseError, begun_labs, drifted, release
from shardlab.syllabus import ROOT


def released(course, solution: str) -> str:
    course.write("solutions/day1_small/sums.py", solution)
    release(course.root)
    return (course.root / "labs/day1_small/sums.py").read_text()


def test_bodies_are_cut_and_named_after_what_is_around_them(course):
    lab = released(
        course,
        '''
        """A lab."""

        import math


        def function(x):
            """Docstring stays."""
            y = x  # given
            # BEGIN SOLUTION
            if y:
                return math.pi
            return y
            # END SOLUTION


        class Given:
            size = 3

            def method(self):
                def inner():
                    # BEGIN SOLUTION
                    return "# END SOLUTION"
                    # END SOLUTION

                return inner()

            @property
            async def last(self):
                # BEGIN SOLUTION
                pass
                # END SOLUTION


        # a comment at the end
        ''',
    )
    assert lab == textwrap.dedent(
        '''\
        """A lab."""

        import math

        from shardlab import NotAttempted


        def function(x):
            """Docstring stays."""
            y = x  # given
            raise NotAttempted("1.1 function")


        class Given:
            size = 3

            def method(self):
                def inner():
                    raise NotAttempted("1.1 Given.method")

                return inner()

            @property
            async def last(self):
                raise NotAttempted("1.1 Given.last")


        # a comment at the end
        '''
    )


def test_only_what_differs_is_written_and_reported(course):
    assert release(course.root) == []
    assert drifted(course.root) == []
    lab = Path("labs/day1_small/sums.py")
    before = (course.root / lab).read_text()
    course.write(str(lab), before + "# edited by hand\n")
    assert drifted(course.root) == [lab]
    assert release(course.root) == [lab]
    assert (course.root / lab).read_text() == before


def test_a_lab_somebody_works_in_is_never_overwritten(course):
    lab = Path("labs/day1_small/sums.py")
    mine = (course.root / lab).read_text().replace('raise NotAttempted("1.1 double")', "return [v + v for v in values]")
    course.write(str(lab), mine)
    assert begun_labs(course.root) == [lab]
    with pytest.raises(ReleaseError, match="exercises are written here"):
        release(course.root)
    assert (course.root / lab).read_text() == mine


def test_a_lab_without_a_solution_has_drifted(course):
    course.write("labs/day1_small/products.py", "")
    assert drifted(course.root) == [Path("labs/day1_small/products.py")]


@pytest.mark.parametrize(
    ("solution", "complaint"),
    [
        ("def f():\n    # BEGIN SOLUTION\n    pass\n", r"sums.py:2: .*without \"# END SOLUTION\""),
        ("def f():\n    pass\n    # END SOLUTION\n", r"sums.py:3: .*without \"# BEGIN SOLUTION\""),
        ("def f():\n    # BEGIN SOLUTION\n    # BEGIN SOLUTION\n    pass\n    # END SOLUTION\n", "sums.py:3: .*line 2"),
        ("def f():\n    # BEGIN SOLUTION\n    if f:\n        pass\n        # END SOLUTION\n", "sums.py:5: .*indented"),
        ("# BEGIN SOLUTION\nx = 1\n# END SOLUTION\n", "sums.py:1: .*outside any function"),
        ("class C:\n    # BEGIN SOLUTION\n    x = 1\n    # END SOLUTION\n", "sums.py:2: .*outside any function"),
        ("def f():\n    pass\n\n\n# BEGIN SOLUTION\nx = 1\n# END SOLUTION\n", "sums.py:5: .*outside any function"),
        (
            "def f():\n    # BEGIN SOLUTION\n    pass\n\n\ndef g():\n    pass\n    # END SOLUTION\n",
            "sums.py:2: .*or its end does",
        ),
        ("def f():\n    return [\n    # BEGIN SOLUTION\n    1,\n    # END SOLUTION\n    ]\n", "not Python, line 3"),
        ("def f(:\n    pass\n", "sums.py:1: "),
        ('def f():\n    """never closed\n', "sums.py"),
    ],
)
def test_markers_that_cannot_be_right_are_refused_with_file_and_line(course, solution, complaint):
    with pytest.raises(ReleaseError, match=complaint):
        released(course, solution)


def test_a_solution_of_no_lesson_is_refused_with_the_nearest_one(course):
    course.write("solutions/day1_small/sum.py", "x = 1\n")
    with pytest.raises(ReleaseError, match=r"day1_small/sum.py:1: .*did you mean solutions/day1_small/sums.py"):
        release(course.root)


IMPORT_CASES = {
    "no import": '"""Doc."""\n\nX = 1\n',
    "nothing at all": "X = 1\n",
    "third party": '"""Doc."""\n\nimport torch\n\nX = torch\n',
    "future and several lines": "from __future__ import annotations\n\nfrom torch import (\n    nn,\n)\n\nX = nn\n",
    "own, before": "import torch\n\nfrom shardlab.ranks import device\n\nX = torch, device\n",
    "own, after": "import torch\n\nfrom labs.day1 import thing\n\nX = torch, thing\n",
    "own, both": "from labs.day1 import a\nfrom shardlab.models import b\n\nX = a, b\n",
    "own, plain": "import shardlab.show\n\nX = shardlab\n",
    "same module": "from shardlab import MAX, data\nfrom shardlab.show import table\n\nX = MAX, data, table\n",
}


@pytest.mark.parametrize("source", IMPORT_CASES.values(), ids=IMPORT_CASES.keys())
def test_the_import_stands_where_ruff_wants_it(source):
    added = with_import(source, "shardlab", "NotAttempted") + "Y = NotAttempted\n"
    arguments = ["check", f"--config={ROOT / 'pyproject.toml'}", "--no-cache", "--stdin-filename=labs/lab.py", "-"]
    command = [sys.executable, "-m", "ruff", *arguments]
    check = subprocess.run(command, input=added, cwd=ROOT, text=True, capture_output=True, check=False)
    assert check.returncode == 0, check.stdout + added
