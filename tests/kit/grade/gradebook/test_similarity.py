"""Similarity: copies are found whatever was renamed, and people who worked alone are left alone."""

import io
import os
import re
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

from shardlab.grade.gradebook.similarity import GRAM, KEPT_NAMES, WINDOW, _winnow, similar_pairs
from shardlab.syllabus import ROOT, lesson, lessons

COLLECTIVES = lesson("collectives")
FIRST = """
def ring_all_reduce(tensor, group=None, async_op=False):
    rank, size = check(group, tensor)
    if size == 1:
        return None
    pieces = list(tensor.view(-1).tensor_split(size))
    scratch = torch.empty_like(pieces[0])
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        out = pieces[(rank - step) % size]
        into = pieces[(rank - step - 1) % size]
        exchange(group, sends=[(out, right)], receives=[(scratch[: into.numel()], left)])
        into.add_(scratch[: into.numel()])
    for step in range(size - 1):
        exchange(
            group,
            sends=[(pieces[(rank + 1 - step) % size], right)],
            receives=[(pieces[(rank - step) % size], left)],
        )


def broadcast(tensor, src, group=None):
    rank, size = check(group, tensor)
    members = dist.get_process_group_ranks(group)
    if src not in members:
        raise ValueError(f"src {src} is not in {members}")
    offset = members.index(src)
    number = (rank - offset) % size
    distance = 1
    while distance < size:
        if number < distance and number + distance < size:
            exchange(group, sends=[(tensor, (number + distance + offset) % size)])
        elif distance <= number < 2 * distance:
            exchange(group, receives=[(tensor, (number - distance + offset) % size)])
        distance *= 2


def bus_bandwidth(operation, payload_bytes, ranks, seconds):
    if ranks < 1 or seconds <= 0:
        raise ValueError(f"{ranks} ranks in {seconds} s")
    algorithm = payload_bytes / seconds
    if operation == "all_reduce":
        return algorithm * 2 * (ranks - 1) / ranks
    if operation in ("all_gather", "reduce_scatter", "all_to_all"):
        return algorithm * (ranks - 1) / ranks
    return algorithm
"""
SECOND = """
class _Ring:
    def __init__(self, group, me, n):
        self.group, self.me, self.n = group, me, n

    def turn(self, send, receive):
        following, previous = self.me + 1, self.me - 1
        if following == self.n:
            following = 0
        if previous < 0:
            previous = self.n - 1
        exchange(self.group, [(send, following)], [(receive, previous)])


def ring_all_reduce(tensor, group=None, async_op=False):
    me, n = check(group, tensor)
    ring = _Ring(group, me, n)
    flat_view = tensor.flatten()
    bounds = [flat_view.numel() * i // n for i in range(n + 1)]

    def chunk(i):
        i %= n
        return flat_view[bounds[i] : bounds[i + 1]]

    position = me
    remaining = n - 1
    while remaining:
        incoming = torch.zeros_like(chunk(position - 1))
        ring.turn(chunk(position).clone(), incoming)
        position -= 1
        chunk(position).copy_(chunk(position) + incoming)
        remaining -= 1
    for _ in range(1, n):
        ring.turn(chunk(position), chunk(position - 1))
        position = position - 1
    if not tensor.is_contiguous():
        tensor.copy_(flat_view.view(tensor.shape))


def broadcast(tensor, src, group=None):
    everybody = dist.get_process_group_ranks(group)
    try:
        start = everybody.index(src)
    except ValueError:
        raise ValueError("src must be a member of the group") from None
    me, n = check(group, tensor)
    virtual = me - start if me >= start else me - start + n
    to_real = lambda v: (v + start) % n
    have_it = virtual == 0
    for level in range((n - 1).bit_length()):
        partner = virtual ^ (1 << level)
        if have_it:
            if partner < n and partner > virtual:
                exchange(group, [(tensor, to_real(partner))])
        elif virtual >> level == 1:
            exchange(group, (), [(tensor, to_real(partner))])
            have_it = True


FACTORS = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0}


def bus_bandwidth(operation, payload_bytes, ranks, seconds):
    for value in (ranks, seconds):
        if not value > 0:
            raise ValueError("only positive numbers make sense")
    share = (1 - 1 / ranks) * FACTORS[operation] if operation in FACTORS else 1
    return share * payload_bytes / seconds
"""


@pytest.fixture
def hand_in(tmp_path):
    """Writes what a student handed in, and gives the paths."""

    def write(student: str, text: str | bytes) -> list[Path]:
        path = tmp_path / student / "day1_one_gpu_to_many" / "collectives.py"
        path.parent.mkdir(parents=True)
        path.write_bytes(text.encode(errors="surrogatepass") if isinstance(text, str) else text)
        return [path]

    return write


def renamed(source: str) -> str:
    """Every name another one, every comment gone, every indentation doubled."""
    lines = [re.sub(r"^ +", lambda spaces: 2 * spaces[0], line) for line in source.splitlines()]
    found = []
    for token in tokenize.generate_tokens(io.StringIO("\n".join(lines)).readline):
        own = token.type == tokenize.NAME and token.string not in KEPT_NAMES
        if token.type != tokenize.COMMENT:
            found.append((token.type, f"zz_{token.string}_q" if own else token.string))
    return tokenize.untokenize(found)


def test_a_copy_with_other_names_is_found_and_two_who_worked_alone_are_not(hand_in):
    files = {
        "first": hand_in("first", FIRST),
        "second": hand_in("second", SECOND),
        "copy": hand_in("copy", '"""All my own."""\n' + renamed(FIRST)),
    }
    (pair,) = similar_pairs(files, [COLLECTIVES.lab])
    assert {pair.first, pair.second} == {"first", "copy"}
    assert pair.share > 0.9
    here, there = pair.matches[0]
    assert here.first <= 5 and here.file == files["first"][0] and there.file == files["copy"][0]
    covered = sum(here.last - here.first + 1 for here, _ in pair.matches)
    assert covered > 0.8 * len(FIRST.splitlines())
    assert str(here).startswith("day1_one_gpu_to_many/collectives.py:")


def test_part_of_a_copy_moved_elsewhere_is_found_with_its_lines(hand_in):
    functions = FIRST.split("\n\n\n")
    files = {"first": hand_in("first", FIRST), "copy": hand_in("copy", "\n\n\n".join([SECOND, *functions[::-1]]))}
    (pair,) = similar_pairs(files, [COLLECTIVES.lab])
    assert pair.share > 0.9
    largest, *_ = sorted(pair.matches, key=lambda match: match[0].first - match[0].last)
    assert largest[1].first > len(SECOND.splitlines()) - 5


def test_untouched_labs_and_what_they_give_are_nobodys(hand_in):
    lab = COLLECTIVES.lab.read_text()
    files = {
        "untouched": hand_in("untouched", lab),
        "too": hand_in("too", lab + "\n# nothing yet\n"),
        "first": hand_in("first", lab + FIRST),
        "second": hand_in("second", lab + SECOND),
    }
    assert similar_pairs(files, [COLLECTIVES.lab]) == []
    assert len(similar_pairs(files, [])) == 6


def test_the_reference_and_its_renamed_copy_are_alike_through_and_through(hand_in):
    source = COLLECTIVES.solution.read_text()
    files = {"one": hand_in("one", source), "other": hand_in("other", renamed(source))}
    (pair,) = similar_pairs(files, [COLLECTIVES.lab])
    assert pair.share > 0.95 and pair.common > 100


def test_solutions_of_different_lessons_are_not_alike():
    ready = lessons(ready=True)
    labs = sorted((ROOT / "labs").glob("day*/*.py"))
    assert similar_pairs({one.id: [one.solution] for one in ready}, labs) == []


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"def f(:\n",
        b"\xff\xfe\x00\x00",
        "'''" + FIRST,
        b"\0" * 1000,
        b"(" * 10**4,
        " x\n\ty\n  z",
        b"\xef\xbb\xbfx = 1\n",
    ],
    ids=["empty", "syntax", "utf-16", "open text", "NUL", "brackets", "indentation", "BOM"],
)
def test_what_is_not_python_stops_nothing(hand_in, text):
    files = {"odd": hand_in("odd", text), "first": hand_in("first", FIRST), "copy": hand_in("copy", FIRST)}
    assert [(pair.first, pair.second) for pair in similar_pairs(files, [])] == [("first", "copy")]
    assert similar_pairs({**files, "gone": [Path("no/such/file.py")]}, [])


def test_nobody_and_one_alone(hand_in):
    assert similar_pairs({}, []) == []
    assert similar_pairs({"one": hand_in("one", FIRST), "none": []}, []) == []


def test_every_common_run_of_gram_and_window_is_kept_once():
    import numpy as np

    rng = np.random.default_rng(0)
    common = rng.integers(0, 2**60, WINDOW, dtype=np.uint64)  # the hashes of GRAM + WINDOW - 1 tokens
    for _ in range(50):
        one, other = (
            np.concatenate(
                [rng.integers(0, 2**60, 40, dtype=np.uint64), common, rng.integers(0, 2**60, 30, dtype=np.uint64)]
            )
            for _ in range(2)
        )
        assert {int(one[place]) for place in _winnow(one)} & {int(other[place]) for place in _winnow(other)}
    assert GRAM > 1


def test_fingerprints_do_not_depend_on_the_process(hand_in, tmp_path):
    for student in ("one", "other"):
        hand_in(student, FIRST if student == "one" else FIRST.replace("if size == 1:\n        return None\n", ""))
    program = (
        "import sys; from pathlib import Path; from shardlab.grade.gradebook.similarity import similar_pairs;"
        "print(similar_pairs({p.parts[-3]: [p] for p in map(Path, sys.argv[1:])}, []))"
    )
    command = [sys.executable, "-c", program, *sorted(map(str, tmp_path.glob("*/*/*.py")))]
    said = {
        subprocess.run(
            command, capture_output=True, text=True, env=os.environ | {"PYTHONHASHSEED": seed}, timeout=60, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1 and "Pair(" in said.pop()
