"""What a student handed in, ready to be graded: bytes kept, faults told in sentences."""

import hashlib
import shutil
import zipfile
from pathlib import Path

import pytest
from small_course import CODE, PRODUCTS, SPLITS, SUMS

from shardlab.grade.intake import take_in
from shardlab.grade.intake.submissions import sha256
from shardlab.grade.source import definitions

MIB = 2**20


def handed_in(folder: Path, files: dict[str, bytes]) -> Path:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


@pytest.mark.parametrize(
    "data",
    [
        CODE.replace(b"\n", b"\r\n"),
        CODE.replace(b"\n", b"\r"),
        b"\xef\xbb\xbf" + CODE,
        b"\xef\xbb\xbf# coding: utf-8\r\n" + CODE,
        b"# coding: latin-1\nname = 'M\xfcller'\n",
        b"",
        b"x = '\\d'\nassert (1, 2)\n",
    ],
    ids=["CRLF", "CR", "BOM", "BOM CRLF", "declared latin-1", "empty", "warnings"],
)
def test_honest_bytes_are_kept_as_they_are(take, tmp_path, data):
    submission = take(handed_in(tmp_path / "s1", {SUMS: data}))
    assert submission.problems == ()
    assert (submission.folder / SUMS).read_bytes() == data


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"name = 'M\xfcller'\n", f"{SUMS} is not UTF-8: save it as UTF-8. As it is, "),
        (CODE.decode().encode("utf-16"), SUMS),
        (b"x = 1\ndef f(:\n", f"{SUMS}, line 2: invalid syntax. As it is, none of its exercises can earn points."),
        (b"x = 1\n\nreturn x\n", f"{SUMS}, line 3: 'return' outside function. As it is, "),
        (b"def f():\n\tx = 1\n        y = 2\n", f"{SUMS}, line 3: inconsistent use of tabs"),
        (b"x = '\x00'\n", f"{SUMS}: "),
        (b"# coding: no-such-thing\n", f"{SUMS}: "),
        (b"<<<<<<< HEAD\nx = 1\n", f"{SUMS}, line 1: invalid syntax"),
        (b"-" * 10_000 + b"1", f"{SUMS}: "),
        (b"(" * 10_000, f"{SUMS}, line 1: too many nested parentheses"),
        (b"a" + b".b" * 300_000, f"{SUMS}: "),
    ],
)
def test_a_lab_that_is_no_python_is_told_and_graded_all_the_same(take, tmp_path, data, sentence):
    submission = take(handed_in(tmp_path / "s1", {SUMS: data, SPLITS: CODE}))
    assert [file.as_posix() for file in submission.files] == [SUMS, SPLITS]
    assert (submission.folder / SUMS).read_bytes() == data
    (problem,) = submission.problems
    assert problem[0].upper() + problem[1:] == problem
    assert sentence[1:] in problem
    assert problem.endswith("none of its exercises can earn points.")


def test_a_lab_made_to_cost_python_minutes_stops_at_a_limit(take, tmp_path, monkeypatch):
    slow = b"def f():0\n" * (MIB // 10)  # the compiler's time grows with the square of it
    monkeypatch.setattr("shardlab.grade.intake.limited._LIMITED", 'ulimit -t 1 && ulimit -c 0 && exec "$@"')
    submission = take(handed_in(tmp_path / "s1", {PRODUCTS: CODE, SUMS: slow, SPLITS: b"x ="}))
    assert submission.problems == (
        f"D{SUMS[1:]}: Python needs more time or memory to read it than for any honest file.",
    )


@pytest.mark.parametrize("program", ["/nowhere/python", shutil.which("false")])
def test_a_machine_that_cannot_check_is_not_the_students_fault(root, tmp_path, monkeypatch, program):
    monkeypatch.setattr("sys.executable", program)
    with pytest.raises(OSError, match=r"(cannot be started|ended with exit code 1): "):
        take_in(handed_in(tmp_path / "s1", {SUMS: CODE}), "s1", tmp_path / "clean", root)


def test_code_is_not_run(take, tmp_path):
    witness = tmp_path / "ran"
    take(handed_in(tmp_path / "s1", {SUMS: f"open({str(witness)!r}, 'w')\n".encode()}))
    assert not witness.exists()


def test_the_digest_is_of_names_and_bytes_whatever_the_form(take, tmp_path):
    files = {SUMS: CODE, SPLITS: b"x = 1\n"}
    by_folder = take(handed_in(tmp_path / "s1", files))
    with zipfile.ZipFile(tmp_path / "s2.zip", "w") as archive:
        for name in reversed(files):
            archive.writestr(f"repo/labs/{name}", files[name])
    by_zip = take(tmp_path / "s2.zip")
    assert by_zip.sha256 == by_folder.sha256
    parts = [part for name in sorted(files) for part in (name.encode(), files[name])]
    assert by_zip.sha256 == hashlib.sha256(b"".join(len(p).to_bytes(8, "big") + p for p in parts)).hexdigest()
    moved = take(handed_in(tmp_path / "s3", {SUMS: files[SPLITS], SPLITS: files[SUMS]}))
    less = take(handed_in(tmp_path / "s4", {SUMS: CODE}))
    assert len({by_zip.sha256, moved.sha256, less.sha256}) == 3
    assert sha256(by_zip.folder, [*reversed(by_zip.files)]) == by_zip.sha256


def test_the_submission_says_whose_it_is_and_where_from(take, tmp_path):
    source = handed_in(tmp_path / "s1", {SUMS: CODE})
    submission = take(source)
    assert (submission.student, submission.source) == ("s1", source)


@pytest.mark.parametrize("data", [b"-" * 10_000 + b"1", b"a" + b".b" * 100_000], ids=["minus", "attributes"])
def test_the_judge_reads_no_definitions_in_what_is_nested_too_deep(tmp_path, data):
    (tmp_path / "sums.py").write_bytes(data)
    assert definitions(tmp_path / "sums.py") == {}
