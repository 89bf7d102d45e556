"""What of a submission is taken, and what is refused with one sentence and exit code 2."""

import shutil
from fnmatch import fnmatch

import pytest

from shardlab.grade.workspace import MAX_FILE_BYTES, SubmissionError, submitted_files, workspace


def test_only_files_a_learner_writes_are_laid_over_a_copy_of_labs(course):
    course.submit("MINE = 1")
    given = ("run_sums.py", "__init__.py", "conftest.py", "helper.py", "torch.py")
    for name in given:
        course.write(f"submission/day1_small/{name}", "MINE = 1")
    course.write("submission/conftest.py", "MINE = 1")
    course.write("labs/day1_small/__pycache__/left.pyc", "")
    with workspace(course.root, course.root / "submission") as place:
        assert "MINE = 1" in (place / "labs/day1_small/sums.py").read_text()
        found = sorted(str(path.relative_to(place)) for path in place.rglob("*") if path.is_file())
        assert found == [
            "labs/__init__.py",
            "labs/day1_small/__init__.py",
            "labs/day1_small/run_sums.py",
            "labs/day1_small/sums.py",
        ]
        assert (place / "labs/day1_small/run_sums.py").read_text() == ""
    assert not place.exists()
    assert "MINE" not in (course.root / "labs/day1_small/sums.py").read_text()


def test_the_workspace_goes_with_an_error(course):
    course.submit()
    with pytest.raises(KeyboardInterrupt), workspace(course.root, course.root / "submission") as place:
        raise KeyboardInterrupt
    assert not place.exists()


def test_what_cannot_be_graded_is_refused(course, tmp_path_factory):
    folder = course.root / "submission"
    course.submit()
    file = folder / "day1_small/sums.py"
    text = file.read_text()

    file.write_text("#" * (MAX_FILE_BYTES + 1))
    with pytest.raises(SubmissionError, match="1,048,577 bytes"):
        submitted_files(course.root, folder)
    file.write_text("#" * MAX_FILE_BYTES)
    submitted_files(course.root, folder)

    file.unlink()
    file.mkdir()
    with pytest.raises(SubmissionError, match="not a regular file"):
        submitted_files(course.root, folder)

    file.rmdir()
    elsewhere = tmp_path_factory.mktemp("elsewhere") / "sums.py"
    elsewhere.write_text(text)
    file.symlink_to(elsewhere)
    with pytest.raises(SubmissionError, match=r"sums.py\" is a link"):
        submitted_files(course.root, folder)

    file.unlink()
    file.parent.rmdir()
    file.parent.symlink_to(elsewhere.parent, target_is_directory=True)
    with pytest.raises(SubmissionError, match=r"day1_small\" is a link"):
        submitted_files(course.root, folder)


@pytest.mark.parametrize(
    ("submission", "sentence"),
    [
        ("nowhere", 'the submission "*/nowhere" does not exist: name a folder that mirrors labs/'),
        ("pyproject.toml", 'the submission "*" is not a folder: name a folder that mirrors labs/'),
        ("tests", "*mirrors nothing of labs/: it should hold day1_small/sums.py or the like"),
        (".", '*mirrors nothing of labs/: it should hold day1_small/sums.py or the like; did you mean "*/labs"?'),
    ],
)
def test_a_folder_that_is_no_submission_ends_the_run_with_one_sentence(course, capsys, submission, sentence):
    assert pytest.main(["-p", "no:nbval", "--submission", submission]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert fnmatch(captured.err, f"shardlab: {sentence}\n")


def test_a_submission_outside_the_checkout_may_have_a_configuration_of_its_own(course, tmp_path_factory):
    course.submit("MINE = 1")
    shutil.rmtree(course.root / "tests")
    course.write(
        "tests/test_light.py",
        """
        def test_labs_are_those_of_the_submission(labs_root):
            assert "MINE = 1" in (labs_root / "labs/day1_small/sums.py").read_text()
        """,
    )
    mine = tmp_path_factory.mktemp("elsewhere") / "mine"
    (course.root / "submission").rename(mine)
    (mine / "pytest.ini").write_text("[pytest]\naddopts = --no-such-option\n")
    (mine / "conftest.py").write_text("raise SystemExit('a submission must not run here')\n")
    for arguments in (["--submission", str(mine)], [f"--submission={mine}"], ["tests", "--submission", str(mine)]):
        run = course.pytester.runpytest_subprocess("-p", "no:nbval", *arguments)
        run.assert_outcomes(passed=1)
        run.stdout.fnmatch_lines([f"submission: {mine} (day1_small/sums.py)", f"rootdir: {course.root}"])
