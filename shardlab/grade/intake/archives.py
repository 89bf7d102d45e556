"""A submission unpacked: whatever form it comes in, its labs become fresh regular files in a folder that mirrors labs/.

Nothing is extracted in place. Readers hand over checked names and counted bytes, and only the bytes of labs; what is
written is called by our names for them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath

from shardlab.grade.intake.bundles import bundle_members
from shardlab.grade.intake.folders import folder_members, read_regular
from shardlab.grade.intake.limits import LEAVE_OUT, MAX_ARCHIVE_BYTES, MIB, Meter
from shardlab.grade.intake.members import Labs, Member, shown
from shardlab.grade.intake.selection import select
from shardlab.grade.intake.tars import tar_members
from shardlab.grade.intake.zips import zip_members
from shardlab.grade.workspace import SubmissionError, labs_to_write
from shardlab.syllabus import ROOT

Reader = Callable[[bytes, Callable[[PurePosixPath], bool], Meter], Iterator[Member]]
READERS: dict[str, Reader] = {
    ".zip": zip_members,
    **dict.fromkeys((".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz"), tar_members),
    ".bundle": bundle_members,
}


def unpack(source: Path, into: Path, root: Path = ROOT) -> tuple[str, ...]:
    """Write the labs that `source` holds to `into`, which must be empty or new.

    Args:
        source: folder, zip, tar (plain, gz, bz2, xz) or git bundle.
        into: becomes a mirror of labs/ with nothing but regular files, none of them executable.
        root: checkout that says which files are labs.

    Returns:
        Sentences for the student: what was left out, and why.

    Raises:
        SubmissionError: one sentence why nothing of it can be taken; nothing is written then.
    """
    labs = Labs(labs_to_write(root))
    given = frozenset(file.relative_to(root / "labs").as_posix() for file in (root / "labs").rglob("*.*"))
    selection = select(_members(source, labs.is_lab), labs, given)
    for lab, data in selection.files.items():
        path = into / lab
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(data)
    return selection.remarks


def suffix_of(name: str) -> str:
    """The ending of an archive that can be read; "" for any other name."""
    return next((suffix for suffix in READERS if name.lower().endswith(suffix)), "")


def _members(source: Path, is_wanted: Callable[[PurePosixPath], bool]) -> Iterator[Member]:
    if source.is_symlink():
        raise SubmissionError(f'"{shown(source.name)}" is a link: hand in the file or folder itself')
    if source.is_dir():
        return folder_members(source, is_wanted, Meter())
    if (reader := READERS.get(suffix_of(source.name))) is None:
        forms = ", ".join(READERS)
        raise SubmissionError(f'"{shown(source.name)}" is nothing that can be read: hand in a folder or one of {forms}')
    packed = _packed(source)
    return reader(packed, is_wanted, Meter(len(packed)))


def _packed(source: Path) -> bytes:
    try:
        packed = read_regular(source, MAX_ARCHIVE_BYTES + 1)
    except OSError as error:
        raise SubmissionError(f'"{shown(source.name)}" cannot be read: {error.strerror}') from None
    if len(packed) > MAX_ARCHIVE_BYTES:
        raise SubmissionError(f"the submission has more than {MAX_ARCHIVE_BYTES // MIB} MiB: {LEAVE_OUT}")
    return packed
