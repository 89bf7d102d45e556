"""Whose is what in a folder of submissions, as people and learning platforms name it.

    ID.zip, ID/, ID_whatever.tar.gz      the id of the roster first
    doejane_LATE_12345_67890_labs.zip    Canvas: name, mark if late, user, file
    Jane Doe_12345_assignsubmission_file_/    Moodle: name, participant; a folder, or a file in old versions
    submission_12345/                    Gradescope: named in the submission_metadata.yml beside it

A name of the roster counts in any order and without its signs and capitals. Of several attempts, the newest counts:
the highest number of a file (Canvas) or submission (Gradescope); for all others, the one changed last.
"""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import yaml

from shardlab.bad_input import BadInput
from shardlab.grade.gradebook.standing import Student
from shardlab.grade.intake.archives import suffix_of
from shardlab.grade.intake.members import shown

GRADESCOPE = "submission_metadata.yml"
_CANVAS = re.compile(r"(?P<name>[^\W_]+)_(?:LATE_)?(?P<user>\d+)_(?P<file>\d+)_.*", re.DOTALL)
_MOODLE = re.compile(r"(?P<name>[^_]+)_(?P<user>\d+)_assignsubmission_(?P<kind>[a-z]+)_.*", re.DOTALL)
_AFTER_ID = ("_", "-", ".", " ", "(")
_NOT_A_LETTER = re.compile(r"[\W_]+")


@dataclass(frozen=True)
class Found:
    """What is to be graded.

    Attributes:
        sources: folder or archive by student id, in the order of the roster.
        missing: students who handed in nothing that can be told to be theirs.
        problems: sentences for the instructor: what belongs to nobody, to several, or is an older attempt.
    """

    sources: dict[str, Path]
    missing: tuple[Student, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True)
class _Entry:
    """One file or folder and whom it may belong to; `group`: to all of them."""

    path: Path
    style: str
    number: int
    students: tuple[str, ...]
    group: bool = False


def find_submissions(folder: Path, roster: Sequence[Student]) -> Found:
    """Give every student of the roster the newest of what is theirs in `folder`.

    Raises:
        BadInput: `folder` is no folder, or Gradescope's list of it cannot be read.
    """
    if not folder.is_dir():
        raise BadInput(
            f'the submissions "{folder}" are no folder: name the one that holds a file or folder per student'
        )
    names = _Names(roster)
    listed = _gradescope(folder, names)
    problems: list[str] = []
    mine: dict[str, list[_Entry]] = defaultdict(list)
    for path in sorted(folder.iterdir()):
        if path.name.startswith((".", "__MACOSX")) or path.name == GRADESCOPE:
            continue
        entry = listed.get(path.name) or _entry(path, names)
        if entry is None:
            problems.append(f'"{shown(path.name)}" is the text beside a submission and was left out')
        elif not entry.students:
            problems.append(f'"{shown(path.name)}" belongs to nobody on the roster')
        elif len(entry.students) > 1 and not entry.group:
            problems.append(f'"{shown(path.name)}" may belong to {" or ".join(entry.students)}: put the id first')
        else:
            for student in entry.students:
                mine[student].append(entry)
    sources = {}
    for student in roster:
        if entries := mine.get(student.id):
            source, said = _newest(student.id, entries)
            problems += said
            if source is not None:
                sources[student.id] = source
    missing = tuple(student for student in roster if student.id not in sources)
    return Found(sources, missing, tuple(problems))


class _Names:
    """Students by what others may call them."""

    def __init__(self, roster: Sequence[Student]) -> None:
        self.ids = {student.id.casefold(): student.id for student in roster}
        self.emails = {student.email.casefold(): student.id for student in roster if student.email}
        self._by_name: dict[str, set[str]] = defaultdict(set)
        for student in roster:
            for name in _orders(student.name):
                self._by_name[name].add(student.id)

    def exactly(self, name: str) -> str | None:
        """The student whose id `name` is, an archive's ending aside."""
        folded = _normal(name)
        return self.ids.get(folded) or self.ids.get(folded.removesuffix(suffix_of(folded)))

    def beginning(self, name: str) -> tuple[str, ...]:
        """All whose id `name` begins with."""
        folded = _normal(name)
        return tuple(
            own for key, own in self.ids.items() if folded.startswith(key) and folded[len(key) :].startswith(_AFTER_ID)
        )

    def called(self, name: str, number: str) -> tuple[str, ...]:
        """All of that name or id; the one whose id is the platform's number, if none or several are."""
        found = set(self._by_name.get(_letters(name), ()))
        if own := self.ids.get(_normal(name)):
            found.add(own)
        if len(found) != 1 and (own := self.ids.get(number)) and (not found or own in found):
            return (own,)
        return tuple(sorted(found))


def _normal(text: str) -> str:
    return unicodedata.normalize("NFC", text).casefold()


def _letters(name: str) -> str:
    return _NOT_A_LETTER.sub("", _normal(name))


def _orders(name: str) -> Iterable[str]:
    """``Jane van Dyk`` and ``van Dyk, Jane`` as either platform may write them."""
    words = _normal(name.replace(",", " ")).split()
    return {_letters("".join(words[at:] + words[:at])) for at in range(len(words))} - {""}


def _entry(path: Path, names: _Names) -> _Entry | None:
    """None: Moodle's page of what was typed beside the files."""
    if own := names.exactly(path.name):
        return _Entry(_inner(path), "the id", 0, (own,))
    if match := _MOODLE.fullmatch(path.name):
        if match["kind"] != "file":
            return None
        return _Entry(_inner(path), "Moodle", 0, names.called(match["name"], match["user"]))
    if match := _CANVAS.fullmatch(path.name):
        return _Entry(path, "Canvas", int(match["file"]), names.called(match["name"], match["user"]))
    return _Entry(_inner(path), "the id", 0, names.beginning(path.name))


def _inner(path: Path) -> Path:
    """The archive that a student uploaded, where a platform put it alone into a folder."""
    if path.is_symlink() or not path.is_dir():
        return path
    try:
        inside = [each for each in path.iterdir() if not each.name.startswith((".", "__MACOSX"))]
    except OSError:
        return path  # intake says so
    return inside[0] if len(inside) == 1 and suffix_of(inside[0].name) else path


def _newest(student: str, entries: list[_Entry]) -> tuple[Path | None, list[str]]:
    if len(entries) == 1:
        return entries[0].path, []
    listed = ", ".join(f'"{shown(entry.path.name)}"' for entry in entries)
    ranked = sorted(entries, key=_age)
    if len({entry.style for entry in entries}) > 1 or _age(ranked[-1]) == _age(ranked[-2]):
        return None, [f"{student} has several submissions of which none is the newest, {listed}: leave one"]
    return ranked[-1].path, [f'{student} has several submissions, {listed}: "{shown(ranked[-1].path.name)}" is newest']


def _age(entry: _Entry) -> tuple[int, int]:
    """Higher for what is newer; of a folder, its newest file counts."""
    if entry.number:
        return entry.number, 0
    times = [entry.path.lstat().st_mtime_ns]
    if entry.path.is_dir() and not entry.path.is_symlink():
        with suppress(OSError):  # what may not be read is not new
            times += [each.lstat().st_mtime_ns for each in entry.path.rglob("*")]
    return 0, max(times)


class _Loader(yaml.SafeLoader):
    """Plain data; what Ruby calls its own is read for its fields or as text."""


def _untagged(loader: yaml.SafeLoader, suffix: str, node: yaml.Node) -> object:
    if isinstance(node, yaml.MappingNode):
        return loader.construct_mapping(node)
    if isinstance(node, yaml.SequenceNode):
        return loader.construct_sequence(node)
    return node.value


_Loader.add_multi_constructor("!", _untagged)


def _gradescope(folder: Path, names: _Names) -> dict[str, _Entry]:
    """Entries of a Gradescope export by name; a group's submission belongs to all of the group."""
    listing = folder / GRADESCOPE
    if not listing.is_file():
        return {}
    try:
        data = yaml.load(listing.read_text(encoding="utf-8-sig"), _Loader)
        return {
            name: _Entry(
                _inner(folder / name),
                "Gradescope",
                int(re.sub(r"\D", "", name) or 0),
                tuple(own for each in about.get(":submitters") or () if (own := _submitter(each, names))),
                group=True,
            )
            for name, about in data.items()
        }
    except (OSError, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise BadInput(f"{GRADESCOPE} cannot be read ({shown(error)}): export the submissions again") from None


def _submitter(about: dict, names: _Names) -> str | None:
    """By the school's id, the address, or the name if only one has it."""
    identity, email = str(about.get(":sid") or ""), str(about.get(":email") or "")
    found = names.called(str(about.get(":name") or ""), identity)
    known = names.ids.get(identity.casefold()) or names.emails.get(email.casefold())
    return known or (found[0] if len(found) == 1 else None)
