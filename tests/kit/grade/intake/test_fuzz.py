"""Archives with bytes knocked out of them: one documented error or a clean result, and never anything else."""

import bz2
import gzip
import io
import lzma
import random
import struct
import tarfile
import zipfile

import pytest
from small_course import CODE, PRODUCTS, SPLITS, SUMS

from shardlab.grade.intake import unpack
from shardlab.grade.workspace import SubmissionError

ROUNDS = 150
TELLING = (b"\0", b"\xff", b"PK\x01\x02", b"PK\x05\x06", b"../", b"\\", b"7777777", struct.pack("<L", 2**32 - 1))


def a_zip() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for number, name in enumerate((f"labs/{SUMS}", f"labs/{PRODUCTS}", "notes.txt", f"labs/{SPLITS}")):
            archive.writestr(name, CODE * (number + 1))
        archive.comment = b"a comment"
    return out.getvalue()


def a_tar() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for number, name in enumerate((f"labs/{SUMS}", "ü" * 80, f"{'folder/' * 16}labs/{SPLITS}", f"labs/{PRODUCTS}")):
            info = tarfile.TarInfo(name)
            info.size, info.mtime = len(CODE) * (number + 1), 1.5
            archive.addfile(info, io.BytesIO(CODE * (number + 1)))
    return out.getvalue()


def damaged(data: bytes, chance: random.Random) -> bytes:
    """Bytes changed, put in, taken out, doubled, or the end cut off; several of these."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 5, 20))):
        at = chance.randrange(len(changed) or 1)
        match chance.randrange(6):
            case 0:
                changed[at : at + 1] = bytes([chance.randrange(256)])
            case 1:
                telling = chance.choice(TELLING)
                changed[at : at + len(telling)] = telling
            case 2:
                changed[at:at] = chance.choice(TELLING)
            case 3:
                del changed[at : at + chance.randrange(1, 64)]
            case 4:
                changed[at:at] = changed[at : at + chance.randrange(1, 512)]
            case 5 if chance.random() < 0.2:
                del changed[at:]
    return bytes(changed)


@pytest.mark.parametrize(
    ("ending", "data", "pack"),
    [
        (".zip", a_zip(), None),
        (".tar", a_tar(), None),
        (".tar.gz", a_tar(), gzip.compress),
        (".tar.bz2", a_tar(), bz2.compress),
        (".tar.xz", a_tar(), lzma.compress),
    ],
    ids=["zip", "tar", "gz", "bz2", "xz"],
)
@pytest.mark.parametrize("seed", range(4))
def test_damage_ends_in_the_documented_error_or_in_labs(root, tmp_path, ending, data, pack, seed):
    chance = random.Random(f"{ending} {seed}")
    source, outcomes = tmp_path / f"s1{ending}", set()
    for number in range(ROUNDS):
        inner = pack is not None and chance.random() < 0.5  # damage what is packed, or the packing
        source.write_bytes(pack(damaged(data, chance)) if inner else damaged(pack(data) if pack else data, chance))
        into = tmp_path / "clean" / str(number)
        try:
            unpack(source, into, root)
        except SubmissionError as error:
            assert "\n" not in str(error)
            assert not into.exists()
            outcomes.add("refused")
        else:
            files = {path.relative_to(into).as_posix() for path in into.rglob("*") if path.is_file()}
            assert files <= {SUMS, PRODUCTS, SPLITS}
            outcomes.add("taken")
    assert "refused" in outcomes
    assert {path.name for path in tmp_path.iterdir()} <= {source.name, "clean", "course"}
