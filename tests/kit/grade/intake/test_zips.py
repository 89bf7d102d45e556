"""Zips: honest ones in every form, and each trick as a real archive."""

import io
import random
import stat
import struct
import warnings
import zipfile
from pathlib import Path

import pytest
from small_course import CODE, PRODUCTS, SPLITS, SUMS

MIB = 2**20


def zipped(path: Path, files: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> Path:
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w", method) as archive:
        warnings.simplefilter("ignore")  # of duplicate names
        for name, data in files.items():
            archive.writestr(name, data)
    return path


def special(name: str, mode: int, data: bytes = b"") -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name)
    entry.create_system = 3
    entry.external_attr = mode << 16
    entry.file_size = len(data)
    return entry


@pytest.mark.parametrize(
    ("prefix", "method"),
    [
        ("", zipfile.ZIP_DEFLATED),
        ("labs/", zipfile.ZIP_DEFLATED),
        ("repo-main/labs/", zipfile.ZIP_STORED),
        ("./", zipfile.ZIP_DEFLATED),
        ("My answers (final)/week 3//labs/", zipfile.ZIP_DEFLATED),
    ],
)
def test_labs_are_found_in_any_folder(take, tmp_path, prefix, method):
    submission = take(zipped(tmp_path / "s1.zip", {f"{prefix}{lab}": CODE for lab in (SUMS, SPLITS)}, method))
    assert [file.as_posix() for file in submission.files] == [SUMS, SPLITS]
    assert submission.problems == ()
    assert (submission.folder / SUMS).read_bytes() == CODE


def test_everything_else_is_left_out_and_named(take, tmp_path):
    others = ("conftest.py", "pytest.ini", "sitecustomize.py", "torch.py", "labs/day1_small/drivers_sums.py")
    noise = ("__MACOSX/labs/._sums.py", ".DS_Store", "labs/day1_small/__pycache__/sums.cpython-311.pyc", ".git/config")
    given = ("labs/day1_small/run_sums.py", "labs/__init__.py")
    names = (f"labs/{SUMS}", *given, *others, *noise)
    submission = take(zipped(tmp_path / "s1.zip", dict.fromkeys(names, CODE)))
    assert [file.as_posix() for file in submission.files] == [SUMS]
    assert submission.problems == (
        "Left out, as only the lab files of lessons are graded: conftest.py, labs/day1_small/drivers_sums.py, "
        "pytest.ini, sitecustomize.py, torch.py, labs/__init__.py, labs/day1_small/run_sums.py.",
    )


def test_a_whole_checkout_counts_by_its_labs_only(take, tmp_path):
    files = {f"repo/labs/{SUMS}": CODE, f"repo/solutions/{SUMS}": b"theirs", f"repo/solutions/{SPLITS}": b"theirs"}
    submission = take(zipped(tmp_path / "s1.zip", files))
    assert [file.as_posix() for file in submission.files] == [SUMS]
    assert (submission.folder / SUMS).read_bytes() == CODE


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({f"a/{SUMS}": CODE, f"b/{SUMS}": CODE}, f'twice, as "a/{SUMS}" and "b/{SUMS}": hand in one.'),
        ({f"a/labs/{SUMS}": CODE, f"labs/{SUMS}": CODE}, f'twice, as "a/labs/{SUMS}" and "labs/{SUMS}"'),
        ({SUMS: CODE, f"./{SUMS}": CODE}, f'holds "{SUMS}" twice: hand in one.'),
        ({SUMS: CODE, "day1_small/Sums.py": CODE}, f'twice, as "day1_small/Sums.py" and "{SUMS}"'),
        ({SUMS: CODE, "Day1_small/sums.py": CODE}, f'twice, as "Day1_small/sums.py" and "{SUMS}"'),
        ({f"/{SUMS}": CODE}, "a name that begins at the root of a disk: pack it again."),
        ({f"//server/{SUMS}": CODE}, "a name that begins at the root of a disk"),
        ({SUMS: CODE, "../evil.py": CODE}, '"../evil.py", a name that climbs out of its folder with ..'),
        ({f"x/../{SUMS}": CODE}, "climbs out of its folder with .."),
        ({f"C:/{SUMS}": CODE}, "begins with a drive letter"),
        ({f"C:{SUMS}": CODE}, "begins with a drive letter"),
        ({SUMS.replace("/", "\\"): CODE}, "a name with a backslash; folders are separated by /"),
        ({SUMS: CODE, "..\\evil.py": CODE}, "a name with a backslash"),
        ({f"{'x' * 1100}/{SUMS}": CODE}, "a name of more than 1,024 bytes"),
        ({f"{'x/' * 40}{SUMS}": CODE}, "a name more than 32 folders deep"),
        ({}, "The submission holds no lab: it should hold day1_small/sums.py or the like."),
        ({"notes.txt": b""}, "The submission holds no lab: it should hold day1_small/sums.py or the like."),
        ({"sums.py": CODE}, f'"sums.py" belongs at {SUMS}.'),
        ({"inner.zip": b"PK"}, 'it holds another archive, "inner.zip", which is not opened: hand that in itself.'),
        ({"day1_small/Sums.py": CODE}, "The submission holds no lab"),
        (
            {SUMS: random.Random(0).randbytes(MIB + 1)},
            f'"{SUMS}" has more than 1,048,576 bytes; a lab has some 10,000.',
        ),
        ({SUMS: b"\0" * (4 * MIB)}, "unpacks to more than 200 times its size"),
        (dict.fromkeys((SUMS, PRODUCTS, SPLITS), b"#" * (MIB - 1)), "unpacks to more than 200 times its size"),
    ],
)
def test_what_no_honest_program_packs_is_refused(refused, tmp_path, files, sentence):
    assert sentence in refused(zipped(tmp_path / "s1.zip", files))


def test_a_misspelled_lab_is_left_out_with_the_right_name(take, tmp_path):
    submission = take(zipped(tmp_path / "s1.zip", {SPLITS: CODE, "Day1_small/Sums.py": CODE}))
    assert [file.as_posix() for file in submission.files] == [SPLITS]
    assert submission.problems == (
        f'"Day1_small/Sums.py" was left out: it has to be spelled {SUMS}, small and capital letters too.',
    )


def test_a_name_twice_is_refused(refused, tmp_path):
    path = tmp_path / "s1.zip"
    with warnings.catch_warnings(), zipfile.ZipFile(path, "w") as archive:
        warnings.simplefilter("ignore")
        archive.writestr(SUMS, CODE)
        archive.writestr(SUMS, b"other")
    assert refused(path) == f'The submission holds "{SUMS}" twice: hand in one.'


def test_a_bomb_that_is_no_lab_is_not_unpacked(take, tmp_path):
    source = zipped(tmp_path / "s1.zip", {SUMS: CODE, "bomb": b"\0" * (64 * MIB)})
    assert [file.as_posix() for file in take(source).files] == [SUMS]


def test_a_size_that_the_headers_deny_is_found_out(refused, tmp_path):
    """The headers say 20 bytes; 40 MiB come out."""
    path = zipped(tmp_path / "s1.zip", {SUMS: b"\0" * (40 * MIB)})
    data = path.read_bytes().replace(struct.pack("<L", 40 * MIB), struct.pack("<L", 20))
    path.write_bytes(data)
    assert "The zip is broken" in refused(path)


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_rare_methods_whose_output_is_not_bounded_are_refused(refused, tmp_path, method):
    path = zipped(tmp_path / "s1.zip", {SUMS: b"\0" * MIB}, method)
    assert refused(path) == f'"{SUMS}" is packed in a rare way: pack it again with the ordinary one, deflate.'


@pytest.mark.parametrize(
    ("mode", "sentence"),
    [
        (stat.S_IFLNK | 0o777, f'"{SUMS}" is a link: hand in the file itself.'),
        (stat.S_IFIFO | 0o666, f'"{SUMS}" is a device, pipe or socket: hand in the file itself.'),
        (stat.S_IFCHR | 0o666, "is a device, pipe or socket"),
        (stat.S_IFBLK | 0o666, "is a device, pipe or socket"),
        (stat.S_IFSOCK | 0o666, "is a device, pipe or socket"),
    ],
)
def test_what_is_no_file_is_refused_in_the_place_of_a_lab(refused, tmp_path, mode, sentence):
    path = tmp_path / "s1.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(special(SUMS, mode), b"/etc/passwd")
    assert sentence in refused(path)


def test_a_link_elsewhere_is_left_out_and_never_made(take, tmp_path):
    path = tmp_path / "s1.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(special("day1_small", stat.S_IFLNK | 0o777), b"/etc")
        archive.writestr(SUMS, CODE)
    submission = take(path)
    assert (submission.folder / SUMS).read_bytes() == CODE
    assert submission.problems == ("Left out, as only the lab files of lessons are graded: day1_small.",)


def test_setuid_bits_do_not_come_through(take, tmp_path):
    path = tmp_path / "s1.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(special(SUMS, stat.S_IFREG | 0o7777), CODE)
    assert take(path).problems == ()


def test_a_password_is_refused(refused, tmp_path):
    path = zipped(tmp_path / "s1.zip", {SUMS: CODE}, zipfile.ZIP_STORED)
    data = bytearray(path.read_bytes())
    data[6] |= 1
    data[data.rindex(b"PK\x01\x02") + 8] |= 1
    path.write_bytes(data)
    assert refused(path) == f'"{SUMS}" is locked with a password: pack it again without one.'


def test_entries_that_share_bytes_are_refused(refused, tmp_path):
    """Many directory entries for one packed kernel, the way a few KB are made to look like petabytes."""
    path = zipped(tmp_path / "s1.zip", {SUMS: CODE})
    data = path.read_bytes()
    start = data.rindex(b"PK\x01\x02")
    end = data.rindex(b"PK\x05\x06")
    entry = data[start:end]
    directory = entry + entry.replace(SUMS.encode(), SPLITS.encode().ljust(len(SUMS), b"x")[: len(SUMS)])
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 2, 2, len(directory), start, 0)
    path.write_bytes(data[:start] + directory + tail)
    assert "The zip is made to deceive" in refused(path)


def test_a_local_name_that_differs_is_refused(refused, tmp_path):
    path = zipped(tmp_path / "s1.zip", {SUMS: CODE})
    data = path.read_bytes()
    path.write_bytes(data.replace(SUMS.encode(), b"x" * len(SUMS), 1))
    assert "The zip is broken" in refused(path)


def test_a_name_with_a_nul_byte_is_refused(refused, tmp_path):
    path = zipped(tmp_path / "s1.zip", {f"{SUMS}#.txt": CODE})
    path.write_bytes(path.read_bytes().replace(b".py#.txt", b".py\0.txt"))
    assert "a name with a NUL byte" in refused(path)


def test_a_name_that_is_not_utf_8_is_refused(refused, tmp_path):
    path = zipped(tmp_path / "s1.zip", {SUMS: CODE, "ä.txt": b""})
    path.write_bytes(path.read_bytes().replace("ä.txt".encode(), b"\xff\xfe.txt"))
    assert "The zip is broken" in refused(path)


def test_control_characters_of_a_name_do_not_reach_the_student(take, tmp_path):
    (sentence,) = take(zipped(tmp_path / "s1.zip", {SUMS: CODE, "a\x1b[31m\nb" + "c" * 200: b""})).problems
    assert "\x1b" not in sentence
    assert "\n" not in sentence
    assert sentence.endswith("c...")


@pytest.mark.parametrize("count", [100_000])
def test_very_many_files_are_refused_before_they_are_listed(refused, tmp_path, count):
    path = tmp_path / "s1.zip"
    entry = struct.pack("<4s6H3L5H2L", b"PK\x01\x02", 20, 20, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0) + b"x"
    directory = entry * count
    tail = struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, len(directory), 0, 0)
    path.write_bytes(directory + tail)
    assert refused(path) == (
        "The submission holds more than 20,000 files: hand in only your lab files, without .venv, .git and data."
    )


def test_a_very_large_archive_is_refused_unread(refused, tmp_path):
    path = tmp_path / "s1.zip"
    with path.open("wb") as file:
        file.truncate(10 * 2**30)
    assert "has more than 32 MiB" in refused(path)


def test_a_zip_inside_a_zip_is_not_opened(take, tmp_path):
    inner = io.BytesIO()
    with zipfile.ZipFile(inner, "w") as archive:
        archive.writestr(SPLITS, CODE)
    submission = take(zipped(tmp_path / "s1.zip", {SUMS: CODE, "inner.zip": inner.getvalue()}, zipfile.ZIP_STORED))
    assert [file.as_posix() for file in submission.files] == [SUMS]
    assert submission.problems == ("Left out, as only the lab files of lessons are graded: inner.zip.",)


@pytest.mark.parametrize("data", [b"", b"PK\x03\x04", b"no zip at all", b"PK\x05\x06" + b"\xff" * 18])
def test_what_is_no_zip_is_refused(refused, tmp_path, data):
    path = tmp_path / "s1.zip"
    path.write_bytes(data)
    assert refused(path).startswith("The zip is broken (")
