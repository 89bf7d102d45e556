"""Tars, plain and packed: honest ones of every format, and each trick as a real archive."""

import bz2
import gzip
import io
import lzma
import tarfile
from pathlib import Path

import pytest
from small_course import CODE, PRODUCTS, SPLITS, SUMS

MIB = 2**20
FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
LEFT_OUT = "Left out, as only the lab files of lessons are graded: "


def packed(path: Path, *members: tuple[str | tarfile.TarInfo, bytes], form: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w:" + packing(path), format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name) if isinstance(name, str) else name
            if isinstance(name, str):
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def packing(path: Path) -> str:
    return {".tar": "", ".tgz": "gz"}.get(path.suffix, path.suffix[1:])


def special(name: str, kind: bytes, target: str = "", **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def header(name: str, size: int, kind: bytes = tarfile.REGTYPE) -> bytes:
    return special(name, kind, size=size).tobuf(tarfile.GNU_FORMAT)


@pytest.mark.parametrize("form", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz"])
def test_labs_are_found_in_every_packing(take, tmp_path, ending, form):
    deep = f"{'a long folder name/' * 6}labs/"
    members = [(f"{deep}{SUMS}", CODE), (f"{deep}{SPLITS}", b""), ("ü" * 70 + "/conftest.py", CODE)]
    submission = take(packed(tmp_path / f"s1{ending}", *members, form=form))
    assert [file.as_posix() for file in submission.files] == [SUMS, SPLITS]
    assert (submission.folder / SUMS).read_bytes() == CODE
    assert submission.problems == (f"{LEFT_OUT}{'ü' * 70}/conftest.py.",)


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress], ids=["gz", "bz2"])
def test_a_tar_packed_in_several_streams_is_read(take, tmp_path, pack):
    data = packed(tmp_path / "plain.tar", (SUMS, CODE), (SPLITS, CODE)).read_bytes()
    path = tmp_path / ("s1.tar.gz" if pack is gzip.compress else "s1.tar.bz2")
    path.write_bytes(pack(data[:700]) + pack(data[700:]) + b"\0" * 100)
    assert len(take(path).files) == 2


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (f"/{SUMS}", "a name that begins at the root of a disk: pack it again."),
        (f"../{SUMS}", "climbs out of its folder with .."),
        (f"x/../{SUMS}", "climbs out of its folder with .."),
        (f"C:/{SUMS}", "begins with a drive letter"),
        (SUMS.replace("/", "\\"), "a name with a backslash"),
        (f"{'x' * 1100}/{SUMS}", "a name of more than 1,024 bytes"),
        (f"{'x/' * 40}{SUMS}", "a name more than 32 folders deep"),
        (f"{SUMS}\0.txt", "a name with a NUL byte"),
    ],
)
def test_a_name_that_no_honest_program_writes_is_refused(refused, tmp_path, name, sentence):
    info = tarfile.TarInfo(name)
    info.pax_headers = {"path": name}
    info.size = len(CODE)
    assert sentence in refused(packed(tmp_path / "s1.tar", (info, CODE)))


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (tarfile.SYMTYPE, "a link"),
        (tarfile.LNKTYPE, "a hard link"),
        (tarfile.CHRTYPE, "a device, pipe or socket"),
        (tarfile.BLKTYPE, "a device, pipe or socket"),
        (tarfile.FIFOTYPE, "a device, pipe or socket"),
    ],
)
def test_what_is_no_file_is_refused_in_the_place_of_a_lab_and_else_left_out(take, refused, tmp_path, kind, words):
    bad = packed(tmp_path / "bad.tar", (special(SUMS, kind, "/etc/passwd"), b""))
    assert refused(bad) == f'"{SUMS}" is {words}: hand in the file itself.'
    odd = packed(tmp_path / "odd.tar", (special("day1_small", kind, "/etc"), b""), (SUMS, CODE))
    submission = take(odd)
    assert (submission.folder / SUMS).read_bytes() == CODE
    assert submission.problems == (f"{LEFT_OUT}day1_small.",)


def test_setuid_bits_do_not_come_through(take, tmp_path):
    info = special(SUMS, tarfile.REGTYPE, mode=0o7777, uid=0, size=len(CODE))
    assert take(packed(tmp_path / "s1.tar", (info, CODE))).problems == ()


def test_sparse_files_are_refused(refused, tmp_path):
    """Both ways to write down that a file has holes: GNU's old type, and pax records."""
    old = tmp_path / "old.tar"
    old.write_bytes(header(SUMS, 512, tarfile.GNUTYPE_SPARSE) + b"\0" * 512 + b"\0" * 1024)
    assert refused(old) == f'"{SUMS}" is packed as a sparse file: pack it again without --sparse.'
    info = special(SUMS, tarfile.REGTYPE, pax_headers={"GNU.sparse.major": "1", "GNU.sparse.realsize": str(10**15)})
    assert "The tar holds a sparse file (GNU.sparse." in refused(packed(tmp_path / "new.tar", (info, b"")))


@pytest.mark.parametrize(
    ("second", "sentence"),
    [
        (SUMS, f'holds "{SUMS}" twice: hand in one.'),
        (f"labs/../{SUMS}", "climbs out"),
        ("day1_small/SUMS.py", f'twice, as "day1_small/SUMS.py" and "{SUMS}"'),
        (f"other/{SUMS}", f'twice, as "{SUMS}" and "other/{SUMS}": hand in one.'),
    ],
)
def test_a_lab_twice_is_refused(refused, tmp_path, second, sentence):
    assert sentence in refused(packed(tmp_path / "s1.tar", (SUMS, CODE), (second, b"x = 1\n")))


def test_a_name_that_is_not_utf_8_is_left_out(take, tmp_path):
    info = tarfile.TarInfo("gr\udcfc\udcdfe.txt")
    submission = take(packed(tmp_path / "s1.tar", (SUMS, CODE), (info, b""), form=tarfile.GNU_FORMAT))
    assert submission.problems == (f"{LEFT_OUT}gr\ufffd\ufffde.txt.",)


@pytest.mark.parametrize("ending", [".tar.gz", ".tar.bz2", ".tar.xz"])
def test_a_bomb_is_refused_as_it_unpacks(refused, tmp_path, ending):
    path = tmp_path / f"s1{ending}"
    opened = {".tar.gz": gzip.open, ".tar.bz2": bz2.open, ".tar.xz": lzma.open}[ending]
    with opened(path, "wb") as file:
        file.write(header("bomb", 2**35))
        for _ in range(24):
            file.write(bytes(MIB))
    assert refused(path) == "The submission unpacks to more than 200 times its size, as no program text does."


def test_more_than_the_cap_is_refused_at_any_ratio(refused, tmp_path, monkeypatch):
    monkeypatch.setattr("shardlab.grade.intake.limits.MAX_UNPACKED_BYTES", MIB // 2)
    path = packed(tmp_path / "s1.tar", ("data", bytes(MIB)), (SUMS, CODE))
    assert "unpacks to more than 0 MiB: hand in only your lab files" in refused(path)


@pytest.mark.parametrize("size", [MIB + 1, 2**40, 2**62])
def test_a_lab_that_claims_to_be_large_is_refused_unread(refused, tmp_path, size):
    path = tmp_path / "s1.tar"
    path.write_bytes(header(SUMS, size) + b"\0" * 1024)
    assert refused(path) == f'"{SUMS}" has more than 1,048,576 bytes; a lab has some 10,000.'


@pytest.mark.parametrize("size", [b"-5", b"9" * 5000, b"1e9", b"\xff"])
def test_a_size_that_is_none_is_refused(refused, tmp_path, size):
    record = b" size=" + size + b"\n"
    length = len(record) + len(str(len(record) + 4))
    length = len(record) + len(str(length))
    data = str(length).encode() + record
    path = tmp_path / "s1.tar"
    block = data + bytes(-len(data) % 512)
    path.write_bytes(header("x", len(data), tarfile.XHDTYPE) + block + header(SUMS, 4) + b"\0" * 2048)
    assert "The tar is broken" in refused(path)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.XGLTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK])
def test_a_header_that_claims_to_be_large_is_refused_unread(refused, tmp_path, kind):
    path = tmp_path / "s1.tar"
    path.write_bytes(header("x", 2**40, kind) + b"1" * 4096)
    assert refused(path) == f"The tar is made to deceive: a header of {2**40:,} bytes."


def test_records_made_to_cost_quadratic_time_cost_none(refused, tmp_path):
    """Digits without an end, 64 KiB of them, header after header."""
    path = tmp_path / "s1.tar"
    path.write_bytes((header("x", 65536, tarfile.XHDTYPE) + b"1" * 65536) * 400)
    assert "The tar is broken" in refused(path)


@pytest.mark.parametrize("kind", [tarfile.REGTYPE, tarfile.XHDTYPE])
def test_very_many_members_are_refused(refused, tmp_path, kind):
    path = tmp_path / "s1.tar"
    path.write_bytes(header("x", 0, kind) * 63_000)
    assert "more than 20,000 files" in refused(path)


@pytest.mark.parametrize(("pack", "ending"), [(gzip.compress, ".tar.gz"), (bz2.compress, ".tar.bz2")])
def test_streams_of_nothing_without_an_end_are_refused(refused, tmp_path, pack, ending):
    path = tmp_path / f"s1{ending}"
    path.write_bytes(pack(header("x", 0)) + pack(b"") * 100_000)
    assert "The tar is broken (a stream of nothing)" in refused(path)


def test_an_xz_that_asks_for_gigabytes_of_memory_is_refused(refused, tmp_path):
    path = tmp_path / "s1.tar.xz"
    small = lzma.compress(header(SUMS, 0), filters=[{"id": lzma.FILTER_LZMA2, "dict_size": MIB}])
    at = small.index(b"\x21\x01") + 2  # the byte that says how large the dictionary is; then the header's checksum
    forged = bytearray(small)
    forged[at] = 40
    size = (forged[12] + 1) * 4
    forged[12 + size - 4 : 12 + size] = (
        __import__("zlib").crc32(bytes(forged[12 : 12 + size - 4])).to_bytes(4, "little")
    )
    path.write_bytes(forged)
    assert "The tar is broken (Memory usage limit exceeded)" in refused(path)


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tar.bz2", ".tar.xz"])
@pytest.mark.parametrize("keep", [0, 1, 100, 600])
def test_what_is_cut_short_is_refused(refused, tmp_path, ending, keep):
    path = packed(tmp_path / f"s1{ending}", (SUMS, CODE), (PRODUCTS, CODE))
    path.write_bytes(path.read_bytes()[:keep] if ending == ".tar" else path.read_bytes()[: keep // 6])
    assert "The tar is broken" in refused(path)
