"""Which submissions share more code than chance gives: reported for a person to read, never scored.

Winnowing (Schleimer, Wilkerson & Aiken 2003, "Winnowing: local algorithms for document fingerprinting"): every run of
`GRAM` tokens is hashed, and of each `WINDOW` neighbouring hashes the smallest is kept. Whatever two files have in
common over GRAM + WINDOW - 1 tokens is so found for certain, and nothing shorter than GRAM. Names, numbers and texts
are folded and comments and layout left out, so renaming hides nothing. What the lab gives to everybody is subtracted.
"""

import builtins
import io
import keyword
import tokenize
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path

import numpy as np

GRAM = 18  # tokens, about two lines
WINDOW = 8
LEAST_SHARE = 0.5  # of the smaller one's fingerprints
MOST_BYTES = 2**18  # of a file: five times the largest lab
MOST_PAIRS = 200  # nobody reads more
MOST_REPEATS = 50  # places of one fingerprint in a file that are looked at
LEAST_COMMON = 10  # fingerprints: less is what two people write alike
KEPT_NAMES = {*keyword.kwlist, *keyword.softkwlist, *dir(builtins)}
DROPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)  # odd, bits of the golden ratio: spreads consecutive numbers (Knuth 6.4)


@dataclass(frozen=True)
class Lines:
    """Lines `first` to `last` of a file."""

    file: Path
    first: int
    last: int

    def __str__(self) -> str:
        return f"{self.file.parent.name}/{self.file.name}:{self.first}-{self.last}"


@dataclass(frozen=True)
class Pair:
    """Two students whose code is alike.

    Attributes:
        share: of the smaller submission's own fingerprints, how many the other one has too.
        common: how many that are.
        matches: passages of the first student, and where they stand with the second.
    """

    first: str
    second: str
    share: float
    common: int
    matches: tuple[tuple[Lines, Lines], ...]


@dataclass(frozen=True)
class Fingerprint:
    """A hash, and the lines it was made of."""

    hash: int
    lines: Lines


def similar_pairs(files_by_student: Mapping[str, Sequence[Path | str]], skeleton: Iterable[Path | str]) -> list[Pair]:
    """The pairs of students that share at least half of what the smaller one wrote, most alike first.

    Args:
        files_by_student: paths of each student's files.
        skeleton: paths of what everybody was given: the labs.
    """
    given = {one for path in skeleton for one in _hashes(_tokens(Path(path))).tolist()}
    prints = {student: _fingerprints(map(Path, files), given) for student, files in files_by_student.items()}
    students = [student for student, own in prints.items() if len({one.hash for one in own}) >= LEAST_COMMON]
    sets = {student: {one.hash for one in prints[student]} for student in students}
    alike = []
    for first, second, common in _common_counts(students, sets):
        share = common / min(len(sets[first]), len(sets[second]))
        if common >= LEAST_COMMON and share >= LEAST_SHARE:
            alike.append((-share, -common, first, second))
    return [
        Pair(first, second, -share, -common, _matches(prints[first], prints[second]))
        for share, common, first, second in sorted(alike)[:MOST_PAIRS]
    ]


def _tokens(path: Path) -> list[tuple[str, int, int]]:
    """Folded tokens with the lines they stand on; up to the first place that is not Python."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES).decode("utf-8-sig", errors="replace").replace("\0", " ")
    except OSError:
        return []
    found = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type not in DROPPED:
                found.append((_folded(token), token.start[0], token.end[0]))
    except (tokenize.TokenError, SyntaxError, ValueError):
        pass
    return found


def _folded(token: tokenize.TokenInfo) -> str:
    if token.type == tokenize.NAME:
        return token.string if token.string in KEPT_NAMES else "name"
    if token.type == tokenize.NUMBER:
        return "0"
    return token.string if token.type == tokenize.OP else "text"


def _hashes(tokens: Sequence[tuple[str, int, int]]) -> np.ndarray:
    """A 64-bit hash of each run of GRAM tokens, the same in every process."""
    codes = np.array([zlib.crc32(word.encode(errors="replace")) for word, _, _ in tokens], dtype=np.uint64)
    count = len(codes) - GRAM + 1
    if count < 1:
        return np.empty(0, dtype=np.uint64)
    mixed = np.zeros(count, dtype=np.uint64)
    for place in range(GRAM):
        mixed = (mixed ^ codes[place : place + count]) * MULTIPLIER
        mixed ^= mixed >> np.uint64(29)
    return mixed


def _fingerprints(files: Iterable[Path], given: set[int]) -> list[Fingerprint]:
    found = []
    for file in files:
        tokens = _tokens(file)
        hashes = _hashes(tokens)
        for place in _winnow(hashes):
            if (value := int(hashes[place])) not in given:
                found.append(Fingerprint(value, Lines(file, tokens[place][1], tokens[place + GRAM - 1][2])))
    return found


def _winnow(hashes: np.ndarray) -> list[int]:
    """Of each window the place of its smallest hash, the last one of equals; each place once."""
    if not len(hashes):
        return []
    windows = np.lib.stride_tricks.sliding_window_view(hashes, min(WINDOW, len(hashes)))
    last = windows.shape[1] - 1
    places = np.arange(len(windows)) + last - windows[:, ::-1].argmin(axis=1)
    return np.unique(places).tolist()


def _common_counts(students: Sequence[str], sets: Mapping[str, set[int]]) -> Iterable[tuple[str, str, int]]:
    """How many hashes each two students share, by one product of matrices; a hash of one student takes no space."""
    holders = Counter(chain.from_iterable(sets[student] for student in students))
    column_of = {value: column for column, value in enumerate(value for value, count in holders.items() if count > 1)}
    has = np.zeros((len(students), len(column_of)), dtype=np.float32)
    for row, student in enumerate(students):
        has[row, [column_of[value] for value in sets[student] if value in column_of]] = 1
    common = has @ has.T
    return [
        (students[row], students[column], int(common[row, column]))
        for row, column in combinations(range(len(students)), 2)
        if common[row, column]
    ]


def _matches(first: Sequence[Fingerprint], second: Sequence[Fingerprint]) -> tuple[tuple[Lines, Lines], ...]:
    """Passages in the order of the first student's files; neighbours on both sides are one."""
    there: dict[int, list[Lines]] = {}
    for one in second:
        there.setdefault(one.hash, []).append(one.lines)
    joined: list[tuple[Lines, Lines]] = []
    for one in first:
        for other in there.get(one.hash, ())[:MOST_REPEATS]:  # the place that goes on where the last one ended
            if joined and _touch(joined[-1][0], one.lines) and _touch(joined[-1][1], other):
                joined[-1] = (_join(joined[-1][0], one.lines), _join(joined[-1][1], other))
                break
        else:
            if one.hash in there:
                joined.append((one.lines, there[one.hash][0]))
    return tuple(joined)


def _touch(one: Lines, other: Lines) -> bool:
    return one.file == other.file and one.first <= other.last + 1 and other.first <= one.last + 1


def _join(one: Lines, other: Lines) -> Lines:
    return Lines(one.file, min(one.first, other.first), max(one.last, other.last))
