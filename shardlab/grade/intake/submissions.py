"""One student's submission, ready to be graded or refused with sentences the student can act on.

Bytes are kept as they were handed in: carriage returns, a byte order mark or another declared encoding are Python's
business. A lab that is no Python at all is kept too and only reported: its lesson is graded, and every exercise of it
ends in that error, while the other lessons lose nothing.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from shardlab.grade.intake.archives import unpack
from shardlab.grade.intake.syntax import problems_of
from shardlab.grade.workspace import SubmissionError, submitted_files
from shardlab.syllabus import ROOT


@dataclass(frozen=True)
class Submission:
    """What one student handed in.

    Attributes:
        student: the id of the roster.
        source: the folder or archive it came as.
        folder: a mirror of labs/ that holds the files to grade and nothing else; None: refused.
        files: those files, relative to `folder`, sorted.
        sha256: over their names and bytes, hex; None: refused.
        problems: sentences for the student: why it was refused, what was left out, what is no Python.
    """

    student: str
    source: Path
    folder: Path | None
    files: tuple[Path, ...]
    sha256: str | None
    problems: tuple[str, ...]


def take_in(source: Path, student: str, into: Path, root: Path = ROOT) -> Submission:
    """Unpack what a student handed in; whatever it is, the answer is a `Submission`.

    Args:
        source: as for `unpack`.
        into: empty or new folder for the clean files.
        root: checkout that says which files are labs.

    Raises:
        OSError: `into` cannot be written, or a program we need not be run; never because of what the student did.
    """
    try:
        remarks = unpack(source, into, root)
        files = tuple(sorted(submitted_files(root, into)))
    except SubmissionError as refusal:
        return Submission(student, source, None, (), None, (_sentence(str(refusal)),))
    problems = map(_sentence, (*problems_of(into, files), *remarks))
    return Submission(student, source, into, files, sha256(into, files), tuple(problems))


def sha256(folder: Path, files: Sequence[Path]) -> str:
    """Hex digest over the sorted names and the bytes of `files`, each with its length before it."""
    digest = hashlib.sha256()
    for file in sorted(files):
        for part in (file.as_posix().encode(), (folder / file).read_bytes()):
            digest.update(len(part).to_bytes(8, "big") + part)
    return digest.hexdigest()


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"
