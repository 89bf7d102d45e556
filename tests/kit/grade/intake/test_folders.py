"""Folders: links are not followed, pipes not waited for, and only labs are read."""

import os
import socket
from pathlib import Path

import pytest
from small_course import CODE, SPLITS, SUMS

LEFT_OUT = "Left out, as only the lab files of lessons are graded: "


def filled(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(CODE)
    return folder


@pytest.mark.parametrize("prefix", ["", "labs/", "repo-main/labs/"])
def test_labs_are_found_in_any_folder(take, tmp_path, prefix):
    noise = (".venv/lib/torch.py", ".git/config", f"{prefix}day1_small/__pycache__/x.pyc", "node_modules/x/y.js")
    submission = take(filled(tmp_path / "s1", f"{prefix}{SUMS}", f"{prefix}{SPLITS}", "conftest.py", *noise))
    assert [file.as_posix() for file in submission.files] == [SUMS, SPLITS]
    assert submission.problems == (f"{LEFT_OUT}conftest.py.",)


def test_links_are_not_followed(take, refused, tmp_path):
    secret = filled(tmp_path / "secret", SPLITS, "key")
    folder = filled(tmp_path / "s1", SUMS)
    (folder / "day2_big").symlink_to(secret / "day2_big", target_is_directory=True)
    (folder / "loop").symlink_to(folder, target_is_directory=True)
    submission = take(folder)
    assert [file.as_posix() for file in submission.files] == [SUMS]
    assert submission.problems == (f"{LEFT_OUT}day2_big, loop.",)

    (folder / "day2_big").unlink()
    (folder / "day2_big").mkdir()
    (folder / SPLITS).symlink_to(secret / SPLITS)
    assert refused(folder) == f'"{SPLITS}" is a link: hand in the file itself.'

    whole = tmp_path / "link"
    whole.symlink_to(secret)
    assert refused(whole) == '"link" is a link: hand in the file or folder itself.'
    archive = tmp_path / "s1.zip"
    archive.symlink_to(secret / "key")
    assert "is a link" in refused(archive)


@pytest.mark.parametrize("kind", ["pipe", "socket", "folder"])
def test_what_is_no_file_is_not_opened(refused, take, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # the path of a socket has to be short

    def make(path: str) -> None:
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            Path(path).mkdir()
        else:
            with socket.socket(socket.AF_UNIX) as server:
                server.bind(path)

    folder = filled(tmp_path / "s1", SPLITS)
    make("s1/odd")
    assert take(folder).problems == (() if kind == "folder" else (f"{LEFT_OUT}odd.",))
    make("s1.zip")
    assert refused(tmp_path / "s1.zip").startswith(
        "The submission holds no lab" if kind == "folder" else '"s1.zip" cannot be read: '
    )
    (folder / "day1_small").mkdir()
    make(f"s1/{SUMS}")
    if kind != "folder":
        assert refused(folder) == f'"{SUMS}" is a device, pipe or socket: hand in the file itself.'


def test_a_large_lab_is_refused_and_a_large_file_beside_it_left_unread(take, refused, tmp_path):
    folder = filled(tmp_path / "s1", SUMS, "data")
    os.truncate(folder / "data", 2**40)
    assert take(folder).problems == (f"{LEFT_OUT}data.",)
    os.truncate(folder / SUMS, 2**40)
    assert refused(folder) == f'"{SUMS}" has more than 1,048,576 bytes; a lab has some 10,000.'


def test_very_many_files_and_very_deep_folders_are_refused(refused, tmp_path, monkeypatch):
    deep = filled(tmp_path / "deep", SUMS, f"{'x/' * 40}y")
    assert "a name more than 32 folders deep" in refused(deep)
    monkeypatch.setattr("shardlab.grade.intake.limits.MAX_FILES", 500)
    many = filled(tmp_path / "many", SUMS, *(f"file {number}" for number in range(600)))
    assert "holds more than 500 files" in refused(many)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_may_not_be_read_is_refused(refused, tmp_path):
    folder = filled(tmp_path / "s1", SUMS)
    (folder / SUMS).chmod(0)
    assert refused(folder) == f'"{SUMS}" cannot be read: Permission denied.'
    (folder / "day1_small").chmod(0)
    assert refused(folder) == '"day1_small" cannot be read: Permission denied.'
    (folder / "day1_small").chmod(0o600)
    assert "cannot be read: Permission denied." in refused(folder)
    (folder / "day1_small").chmod(0o700)
    folder.chmod(0)
    assert refused(folder) == '"s1" cannot be read: Permission denied.'
    folder.chmod(0o700)


def test_names_that_are_not_utf_8_are_left_out(take, tmp_path):
    folder = filled(tmp_path / "s1", SUMS)
    try:
        (folder / os.fsdecode(b"gr\xfc\xdfe")).write_bytes(b"")
    except OSError:
        pytest.skip("this file system takes UTF-8 only")
    assert take(folder).problems == (f"{LEFT_OUT}gr\ufffd\ufffde.",)


@pytest.mark.parametrize("name", ["s1.rar", "s1.7z", "s1", "s1.py", "nowhere.zip"])
def test_another_form_is_refused_with_those_that_are_read(refused, tmp_path, name):
    if not name.startswith("nowhere"):
        (tmp_path / name).write_bytes(CODE)
        assert refused(tmp_path / name).endswith(
            "hand in a folder or one of .zip, .tar, .tar.gz, .tgz, .tar.bz2, .tbz2, .tar.xz, .txz, .bundle."
        )
    else:
        assert refused(tmp_path / name) == '"nowhere.zip" cannot be read: No such file or directory.'
