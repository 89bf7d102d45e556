"""Classic wrong solutions must fail: the graded tests are held against them.

tests/kit/wrong_solutions/DAY/TOPIC/NAME.py holds only the functions and classes that replace the solution's own. Its
docstring begins with ``FAILS: ring_all_reduce, all_gather``, the exercises that must lose points; the rest says why it
is wrong. Of every other exercise that it replaces the code of, the first case must still pass.
"""

import ast
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain, groupby, zip_longest
from pathlib import Path

import pytest

from shardlab.grade.marks import EXERCISE
from shardlab.syllabus import ROOT, Lesson, lesson

FOLDER = Path(__file__).parent / "wrong_solutions"
FILES = sorted(FOLDER.glob("*/*/*.py"))
Grade = Callable[[Lesson, Path, object], int]
BROKEN = ("NameError", "ImportError", "ModuleNotFoundError", "SyntaxError")  # says nothing about the tests


@dataclass
class Judge:
    """A plugin for one run that is over soon: each exercise ends with its first failure.

    Attributes:
        named: exercises to run in full.
        replaced: functions and classes whose other exercises run too: the first case, which is the cheapest.
        tried: exercises of which a case ran.
        failures: of each exercise that failed, the report of its first failing case.
    """

    named: set[str]
    replaced: set[str]
    tried: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """One case of each test before a second one of any: what is wrong shows in some test rather than some case.

        Of several cases the last comes first: it has the most ranks, and mistakes hide where there are few.
        """
        graded = [item for item in items if EXERCISE in item.stash]
        tests = [list(cases)[::-1] for _, cases in groupby(graded, lambda item: item.nodeid.partition("[")[0])]
        named = [cases for cases in tests if _name(cases[0]) in self.named]
        others = {}
        for *_, first in tests:
            if _name(first) not in self.named and _name(first).partition(".")[0] in self.replaced:
                others.setdefault(_name(first), first)
        rounds = chain.from_iterable(zip_longest(*named))
        items[:] = [*others.values(), *(item for item in rounds if item)]

    def pytest_runtest_protocol(self, item: pytest.Item) -> bool | None:
        return True if _name(item) in self.failures else None  # True: taken care of, nothing to run

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = dict(report.user_properties)["shardlab_case"]["exercise"]
        self.tried.add(name)
        if not report.passed:
            self.failures.setdefault(name, report.longreprtext)


def _name(item: pytest.Item) -> str:
    return item.stash[EXERCISE].name


@pytest.mark.slow
@pytest.mark.parametrize("wrong", FILES, ids=[str(file.relative_to(FOLDER).with_suffix("")) for file in FILES])
def test_it_fails_the_exercises_it_names_and_no_other(wrong: Path, grade_inside: Grade, tmp_path: Path) -> None:
    graded = lesson(wrong.parent.name)
    judge = Judge(named_exercises(wrong), replaced_by(wrong))
    submission = lay_over(graded, wrong, tmp_path / "submission")
    grade_inside(graded, submission, judge)

    assert judge.named <= judge.tried, f"the tests grade no exercise {sorted(judge.named - judge.tried)}"
    missed = sorted(judge.named - judge.failures.keys())
    assert not missed, f"it passes every test of {missed}: a learner would get full points for it"
    spared = {name: text for name, text in judge.failures.items() if name not in judge.named}
    assert not spared, f"it fails more than it names: {sorted(spared)}\n" + "\n".join(spared.values())
    for name, report in judge.failures.items():
        broken = next((kind for kind in BROKEN if f"{kind}: " in report), None)
        assert broken is None, f"{name} fails for {broken}, which is a slip in {wrong.name} and no wrong idea\n{report}"


def named_exercises(wrong: Path) -> set[str]:
    first = (ast.get_docstring(ast.parse(wrong.read_text())) or "").partition("\n")[0]
    label, _, names = first.partition(": ")
    assert label == "FAILS", f'{wrong} must begin with a docstring such as """FAILS: ring_all_reduce, all_gather'
    return {name.strip() for name in names.split(",")}


def replaced_by(wrong: Path) -> set[str]:
    """Names at the top level of `wrong`: what it replaces in the solution."""
    return {node.name for node in ast.parse(wrong.read_text()).body if hasattr(node, "name")}


def lay_over(graded: Lesson, wrong: Path, submission: Path) -> Path:
    """A submission: all solutions, on which later lessons build, and at the end of this lesson's the definitions that
    replace some of its own."""
    shutil.copytree(ROOT / "solutions", submission, ignore=shutil.ignore_patterns("__pycache__"))
    file = submission / graded.day / f"{graded.slug}.py"
    file.write_text(f"{graded.solution.read_text()}\n\n{wrong.read_text()}")
    return submission


@pytest.mark.slow
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ('"""FAILS: bus_bandwidth"""\n', r"passes every test of \['bus_bandwidth'\]"),
        ('"""FAILS: bandwidth"""\n', r"grade no exercise \['bandwidth'\]"),
        ('"""FAILS: bus_bandwidth"""\ndef bus_bandwidth(*inputs):\n    return other\n', "slip in check.py"),
        (
            '"""FAILS: bus_bandwidth"""\nbus_bandwidth = 1\ndef predict_seconds(*inputs):\n    return 1.0\n',
            r"names: \['predict_seconds'\]",
        ),
        ('"""Wrong."""\n', "must begin with a docstring"),
    ],
)
def test_a_wrong_solution_that_shows_nothing_is_noticed(
    source: str, complaint: str, grade_inside: Grade, tmp_path: Path
) -> None:
    check = tmp_path / "collectives" / "check.py"
    check.parent.mkdir()
    check.write_text(source)
    with pytest.raises(AssertionError, match=complaint):
        test_it_fails_the_exercises_it_names_and_no_other(check, grade_inside, tmp_path)
