"""Points: split over cases, added up over tests, counted from what is declared and not from what ran."""

import json
from fractions import Fraction
from pathlib import Path

import pytest

from shardlab.grade import exercise
from shardlab.grade.status import run_tests, scores
from shardlab.syllabus import lesson


def test_cases_share_the_points_of_their_test(course):
    submission = course.submit(
        """
        def all_sum(tensor):
            if tensor.dtype == torch.bool:
                raise ValueError("bool cannot be added")
            if dist.get_world_size() != 3:
                dist.all_reduce(tensor)
        """
    )
    run = course.run(submission)
    run.assert_outcomes(passed=6, failed=1)
    run.stdout.fnmatch_lines(["*double*3 of 3*done*", "*all_sum*3.67 of 5*1 of 4 tests failed*", "*all*9.67 of 11*"])


def test_what_did_not_run_is_not_earned(course):
    submission = course.submit()
    one_case = course.run(submission, "tests/day1_small/test_sums.py::test_every_rank_gets_the_sum[2]")
    one_case.stdout.fnmatch_lines(["*all_sum*1.33 of 5*not every test ran*"])
    stopped = course.run(
        submission, "-k", "doubles or refuses_nothing", "--deselect", "tests/day1_small/test_sums.py::test_doubles"
    )
    stopped.stdout.fnmatch_lines(["*double*1 of 3*not every test ran*"])


def test_a_test_that_fails_while_it_cleans_up_earns_nothing(course):
    course.write(
        "tests/day1_small/conftest.py",
        """
        import pytest

        @pytest.fixture(autouse=True)
        def clean_up(request):
            yield
            assert "refuses" in request.node.name
        """,
    )
    run = course.run(course.submit(), "-k", "double or nothing")
    run.stdout.fnmatch_lines(["*double*1 of 3*1 of 2 tests failed*"])


def test_a_test_this_machine_cannot_run_is_told_apart(course):
    tests = course.root / "tests/day1_small/test_sums.py"
    tests.write_text(
        tests.read_text().replace("def test_doubles(lab):", "def test_doubles(lab):\n    pytest.skip('no GPU')")
    )
    run = course.run(course.submit(), "-k", "double or nothing")
    run.stdout.fnmatch_lines(["*double*1 of 3*1 of 2 tests need what this machine lacks*"])


def test_the_learners_points_are_kept_from_run_to_run(course):
    def standing() -> dict:
        return {
            score.exercise.name: (score.earned, score.exercise.points, score.remark) for score in scores(course.root)
        }

    not_yet = "not attempted: open labs/day1_small/sums.py"
    assert standing() == {
        name: (0, points, "not run yet") for name, points in (("double", 3), ("all_sum", 5), ("Average", 3))
    }
    course.run(course.submit())
    assert not (course.root / "results").exists()  # somebody's submission is not the learner's progress

    course.run()
    assert standing() == {
        name: (0, points, not_yet) for name, points in (("double", 3), ("all_sum", 5), ("Average", 3))
    }

    (course.root / "labs/day1_small/sums.py").write_text((course.root / "submission/day1_small/sums.py").read_text())
    course.run("-k", "double or nothing or bool")
    assert standing() == {
        "double": (3, 3, "done"),
        "all_sum": (0, 5, not_yet),  # only one of its tests ran
        "Average": (0, 3, not_yet),
    }

    status = course.root / "results/status.json"
    status.write_text(json.dumps({"1.1": {"double": {"earned": "3/2", "points": 4, "remark": "done"}}}))
    assert standing()["double"] == (Fraction(0), 3, "not run yet")  # the tests have changed since
    status.write_text("{")
    assert standing()["double"] == (Fraction(0), 3, "not run yet")


def test_results_that_cannot_be_written_are_a_warning(course):
    course.write("results", "a file where the folder should be")
    run = course.run("-k", "double")
    run.assert_outcomes(skipped=1, deselected=6, warnings=1)
    run.stdout.fnmatch_lines(["*points are not kept*"])


def test_the_command_line_gets_pytests_exit_code(capfd):
    assert run_tests(lesson("1.3"), Path("nowhere")) == 2
    assert 'nowhere" does not exist' in capfd.readouterr().err


@pytest.mark.parametrize("points", [0, -1, 1.5, True, "4"])
def test_points_are_whole_and_positive(points):
    with pytest.raises(ValueError, match=r"1\.3 ring_all_reduce: points must be a whole number"):
        exercise("1.3", "ring_all_reduce", points=points)


@pytest.mark.parametrize(
    ("mark", "complaint"),
    [
        ('"1.1", "doble", points=1', 'test_sums.py:2: the solution defines no "doble"; did you mean "double"?'),
        ('"1.2", "double", points=1', "test_sums.py:2: these are the tests of lesson 1.1 sums, not of 1.2"),
        ('"1.9", "double", points=1', 'test_sums.py:2: there is no lesson "1.9"; did you mean 1.? *?'),
        ('"1.1", "double", points=1 + 1', "test_sums.py:2: write the mark as literals, such as *"),
        ('"1.1", name="double", points=2', "test_sums.py:2: write the mark as literals, such as *"),
    ],
)
def test_a_mark_that_cannot_be_right_is_refused_with_file_and_line(course, mark, complaint):
    text = f"from shardlab.grade import exercise\n@exercise({mark})\ndef test(): pass"
    course.write("tests/day1_small/test_sums.py", text)
    run = course.run()
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines([f"tests/day1_small/{complaint}"])


def test_marks_belong_in_the_tests_of_a_lesson(course):
    course.write(
        "tests/test_other.py",
        "from shardlab.grade import exercise\n@exercise('1.1', 'double', points=1)\ndef test(): pass",
    )
    run = course.run("tests/test_other.py")
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines(
        ["*tests/test_other.py: exercise marks belong in tests/DAY/test_TOPIC.py of a lesson in syllabus.toml"]
    )


def test_the_lab_fixture_belongs_in_the_tests_of_a_lesson(course):
    course.write("tests/test_other.py", "def test(lab): pass")
    run = course.run("tests/test_other.py")
    run.assert_outcomes(errors=1)
    run.stdout.fnmatch_lines(["*test_other.py holds the tests of no lesson in syllabus.toml*"])
