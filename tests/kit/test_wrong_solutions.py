"""Classic wrong solutions must fail: the graded tests are held against them.

tests/kit/wrong_solutions/DAY/TOPIC/NAME.py holds only the functions and classes that replace the solution's own. Its
docstring begins with ``FAILS: ring_all_reduce, all_gather``, the exercises that must lose points; the rest says why it
is wrong. Of every other exercise one case must still pass.
"""

import ast
from dataclasses import dataclass, field
from itertools import chain, groupby, zip_longest
from pathlib import Path

import pytest

from shardlab.grade.marks import EXERCISE
from shardlab.syllabus import ROOT, Lesson, lesson

FOLDER = Path(__file__).parent / "wrong_solutions"
FILES = sorted(FOLDER.glob("*/*/*.py"))
BROKEN = ("NameError", "ImportError", "ModuleNotFoundError", "SyntaxError")  # says nothing about the tests


@dataclass
class Judge:
    """A plugin for one run that is over soon: each exercise ends with its first failure.

    Attributes:
        named: exercises to run in full; of others one case is enough.
        tried: exercises of which a case ran.
        failures: of each exercise that failed, the report of its first failing case.
    """

    named: set[str]
    tried: set[str] = field(default_factory=set)
    failures: dict[str, str] = field(default_factory=dict)

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """One case of each test before a second one of any: what is wrong shows in some test rather than some case.

        Of several cases the last comes first: it has the most ranks, and mistakes hide where there are few.
        """
        graded = [item for item in items if EXERCISE in item.stash]
        others = {_name(item): item for item in reversed(graded) if _name(item) not in self.named}
        named = [item for item in reversed(graded) if _name(item) in self.named]
        cases = [list(of_test) for _, of_test in groupby(named, lambda item: item.nodeid.partition("[")[0])]
        rounds = chain.from_iterable(zip_longest(*cases))
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
def test_it_fails_the_exercises_it_names_and_no_other(wrong: Path, tmp_path: Path) -> None:
    graded = lesson(wrong.parent.name)
    judge = Judge(named_exercises(wrong))
    submission = lay_over(graded, wrong, tmp_path / "submission")
    options = ["-p", "no:cacheprovider", "-p", "no:faulthandler", "-p", "no:nbval", "-p", "no:xdist"]
    folders = [f"--submission={submission}", f"--basetemp={tmp_path / 'run'}"]
    pytest.main([*options, *folders, f"--rootdir={ROOT}", str(graded.tests)], plugins=[judge])

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


def lay_over(graded: Lesson, wrong: Path, submission: Path) -> Path:
    """A submission: the solution, and after it the definitions that replace some of its own."""
    file = submission / graded.day / f"{graded.slug}.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"{graded.solution.read_text()}\n\n{wrong.read_text()}")
    return submission
