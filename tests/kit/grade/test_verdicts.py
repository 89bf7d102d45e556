"""What a submission gets for what it does: right, wrong, not attempted, broken in every way a rank can break."""

import time

import pytest


def test_the_solution_passes_everything(course):
    run = course.run(course.submit())
    run.assert_outcomes(passed=7)
    run.stdout.fnmatch_lines(["*all*11 of 11*"])


def test_an_untouched_lab_is_skipped_with_the_file_to_open(course):
    run = course.run()
    run.assert_outcomes(skipped=7)
    run.stdout.fnmatch_lines(
        [
            "*1.1 sums*double*0 of 3*not attempted: open labs/day1_small/sums.py*",
            "*all*0 of 11*",
            "SKIPPED*labs/day1_small/sums.py:9: not attempted: open labs/day1_small/sums.py (double), 0 of 3 points",
            "SKIPPED*labs/day1_small/sums.py:*not attempted: open labs/day1_small/sums.py (Average.add), 0 of 3 points",
        ]
    )
    assert run.ret == 0


def test_what_is_missing_deep_inside_the_ranks_is_not_attempted(course):
    submission = course.submit(
        """
        from shardlab import NotAttempted

        def all_sum(tensor):
            if dist.get_world_size() == 1:
                return
            if dist.get_rank() == 0:
                raise NotAttempted("1.1 all_sum")
            dist.recv(tensor, 0)
        """
    )
    run = course.run(submission, "-k", "every_rank or average")
    run.assert_outcomes(failed=1, skipped=3)  # one rank: nothing done, which is wrong
    run.stdout.fnmatch_lines(["*Average*0 of 3*", "SKIPPED*open labs/day1_small/sums.py (all_sum), 0 of 5 points"])


def failing_cases(course, overrides: str, select: str) -> pytest.RunResult:
    run = course.run(course.submit(overrides), "-k", select)
    outcomes = run.parseoutcomes()
    assert set(outcomes) == {"failed", "deselected"}, outcomes
    return run


def test_a_rank_that_leaves_with_exit_code_0_fails(course):
    run = failing_cases(
        course,
        """
        import os

        def all_sum(tensor):
            os._exit(0)
        """,
        "every_rank and 2",
    )
    run.stdout.fnmatch_lines(["E*all_sum on 2 ranks: rank ? exited*", "*all_sum*0 of 5*1 of 1 tests failed*"])


def test_a_rank_that_is_killed_fails(course):
    run = failing_cases(
        course,
        """
        import os, signal

        def all_sum(tensor):
            if dist.get_rank() == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            dist.all_reduce(tensor)
        """,
        "every_rank and 3",
    )
    run.stdout.fnmatch_lines(["E*all_sum on 3 ranks: rank 1 killed*"])


def test_a_hang_fails_within_seconds_and_names_the_line(course):
    started = time.monotonic()
    run = failing_cases(
        course,
        """
        def all_sum(tensor):
            if dist.get_rank() == 0:
                dist.recv(tensor, 1)  # line 45
        """,
        "every_rank and 2",
    )
    assert time.monotonic() - started < 15
    run.stdout.fnmatch_lines(
        ["E*on 2 ranks: rank 0 hung at labs/day1_small/sums.py:45*", "E*rank 0 waits in recv*never sent*"]
    )


def test_an_exception_shows_the_learners_lines_and_none_of_the_judges(course):
    run = failing_cases(
        course,
        """
        def all_sum(tensor):
            dist.all_reduce(tensor)
            if dist.get_rank() == 0:
                raise KeyError("left")  # here
        """,
        "every_rank and 2",
    )
    output = run.stdout.str()
    assert "rank 0 raised at labs/day1_small/sums.py:" in output
    assert 'raise KeyError("left")  # here' in output
    assert "> " in output and 'lab.on_ranks(ranks).call("all_sum", inputs)' in output  # where the test stands
    assert "rank_side.py" not in output
    assert "run_ranks" not in output


@pytest.mark.parametrize(
    "body",
    [
        "tensor.fill_(sum(range(99)))",  # wrong value
        "tensor.set_(tensor.double())",  # wrong dtype
        "tensor.resize_(2)",  # wrong shape
        "return torch.zeros(3)",  # a tensor, but not the sum
        "return (index for index in range(3))",  # not plain data
        "missing_name",
        "import nowhere",
    ],
)
def test_wrong_results_fail(course, body):
    failing_cases(course, f"def all_sum(tensor):\n    {body}\n", "every_rank and 2")


def test_a_file_that_is_not_python_fails_and_says_where(course):
    run = failing_cases(course, "def all_sum(tensor:\n", "every_rank and 2")
    run.stdout.fnmatch_lines(["E*SyntaxError*"])


def test_a_renamed_function_fails_and_names_it(course):
    run = failing_cases(course, "del double\n", "doubles")
    run.stdout.fnmatch_lines(['E*labs.day1_small.sums has no "double"*'])


def test_a_submission_that_prints_without_end_is_cut_and_still_right(course):
    submission = course.submit(
        """
        def all_sum(tensor):
            for _ in range(50_000):
                print("I am a rank and I like to talk")
            dist.all_reduce(tensor)
            assert tensor.numel() != 2
        """
    )
    course.run(submission, "-k", "every_rank").assert_outcomes(passed=3, deselected=4)
    course.write("tests/day1_small/drivers_sums.py", "def average(lab, shared, own): lab.all_sum(lab.torch.ones(2))")
    run = course.run(submission, "-k", "average")
    run.assert_outcomes(failed=1, deselected=6)
    run.stdout.fnmatch_lines(["*characters of output before this are not shown"])
    assert len(run.stdout.str()) < 50_000


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        ("dist.all_reduce(tensor.float())", "all_sum returned None, it should have raised ValueError"),
        ("dist.barrier(); raise ValueError('bool')", "called barrier*before it raised ValueError"),
        ("raise TypeError('bool')", "all_sum, which must raise ValueError, on 2 ranks: rank ? raised*TypeError: bool"),
        ("if dist.get_rank(): raise ValueError('bool')", "rank 0: all_sum returned None*"),
        ("import shardlab; raise shardlab.NotAttempted('1.1 all_sum')", "not attempted"),
    ],
)
def test_bad_input_must_be_refused_by_every_rank_before_it_communicates(course, body, complaint):
    run = course.run(course.submit(f"def all_sum(tensor):\n    {body}\n"), "-k", "refuses_bool")
    run.assert_outcomes(**{"skipped" if complaint == "not attempted" else "failed": 1}, deselected=6)
    run.stdout.fnmatch_lines([f"*{complaint}*"])


def test_inputs_follow_the_seed_and_the_test(course):
    course.write(
        "tests/day1_small/test_seeds.py",
        """
        import pytest

        @pytest.mark.parametrize("case", [1, 2])
        def test_seed(seed, case):
            with open("seeds", "a") as file:
                print(seed, file=file)
        """,
    )
    for option in ("--seed=1", "--seed=1", "--seed=2", "--seed=secret"):
        course.run("tests/day1_small/test_seeds.py", option).assert_outcomes(passed=2)
    first, second, again_first, again_second, *others = (course.root / "seeds").read_text().split()
    assert (first, second) == (again_first, again_second)
    assert len({first, second, *others}) == 6
    assert all(0 <= int(number) < 2**32 for number in (first, second, *others))
