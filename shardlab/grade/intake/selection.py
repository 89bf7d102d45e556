"""Which members of a submission are graded: each lab once, from one place, and all the rest left out and named."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from shardlab.grade.intake.members import Kind, Labs, Member, is_archive, is_noise, shown
from shardlab.grade.workspace import SubmissionError

_NAMED = 8  # of the files that were left out


@dataclass(frozen=True)
class Selection:
    """What is taken.

    Attributes:
        files: bytes of each lab, by its path relative to labs/.
        remarks: sentences for the student.
    """

    files: dict[Path, bytes]
    remarks: tuple[str, ...]


def select(members: Iterable[Member], labs: Labs, given: frozenset[str]) -> Selection:
    """Take each lab from the one place it is at.

    A lab is ``day/topic.py`` in any folder. Where something lies under a folder labs/, only that counts, so that a
    whole checkout can be handed in.

    Args:
        given: names, relative to labs/, that every student has; named last among what is left out.

    Raises:
        SubmissionError: a lab is there twice, or is no regular file, or there is none.
    """
    likely: list[Member] = []
    left: list[PurePosixPath] = []
    for member in members:
        if is_noise(member.name):
            continue
        if labs.near(member.name) is None:
            left.append(member.name)
        else:
            likely.append(member)
    only_under_labs = any(_is_under_labs(member) for member in likely)
    chosen: dict[Path, Member] = {}
    for member in likely:
        if only_under_labs and not _is_under_labs(member):
            left.append(member.name)
        else:
            _add(chosen, labs, member)
    misspelled = {lab: member for lab, member in chosen.items() if not labs.is_lab(member.name)}
    files = {lab: _bytes(member) for lab, member in chosen.items() if lab not in misspelled}
    if not files:
        raise SubmissionError(_nothing(labs, [*left, *(member.name for member in misspelled.values())]))
    remarks = [
        f'"{shown(member.name)}" was left out: it has to be spelled {lab.as_posix()}, small and capital letters too'
        for lab, member in misspelled.items()
    ]
    return Selection(files, (*remarks, *_left_out(left, given)))


def _is_under_labs(member: Member) -> bool:
    return member.name.parts[-3:-2] == ("labs",)


def _add(chosen: dict[Path, Member], labs: Labs, member: Member) -> None:
    lab = labs.near(member.name)
    assert lab is not None
    if other := chosen.get(lab):
        if other.name == member.name:
            raise SubmissionError(f'the submission holds "{shown(member.name)}" twice: hand in one')
        first, second = sorted((other.name, member.name))
        raise SubmissionError(
            f'the submission holds {lab.as_posix()} twice, as "{shown(first)}" and "{shown(second)}": hand in one'
        )
    chosen[lab] = member


def _bytes(member: Member) -> bytes:
    if member.kind is not Kind.FILE:
        raise SubmissionError(f'"{shown(member.name)}" is {member.kind.value}: hand in the file itself')
    assert member.data is not None
    return member.data


def _nothing(labs: Labs, left: Sequence[PurePosixPath]) -> str:
    wanted = f"it should hold {labs.wanted[0].as_posix()} or the like" if labs.wanted else "there are no labs yet"
    sentence = f"the submission holds no lab: {wanted}"
    if inner := next((name for name in left if is_archive(name.name)), None):
        return f'{sentence}; it holds another archive, "{shown(inner)}", which is not opened: hand that in itself'
    loose = {lab.name: lab for lab in labs.wanted}
    if near := next((name for name in left if name.name in loose), None):
        return f'{sentence}; "{shown(near)}" belongs at {loose[near.name].as_posix()}'
    return sentence


def _left_out(left: Iterable[PurePosixPath], given: frozenset[str]) -> list[str]:
    def is_given(name: PurePosixPath) -> bool:
        return any("/".join(name.parts[at:]) in given for at in (-1, -2))

    names = sorted({(is_given(name), name) for name in left})
    if not names:
        return []
    listed = ", ".join(shown(name) for _, name in names[:_NAMED])
    more = f" and {len(names) - _NAMED:,} more" if len(names) > _NAMED else ""
    return [f"Left out, as only the lab files of lessons are graded: {listed}{more}"]
