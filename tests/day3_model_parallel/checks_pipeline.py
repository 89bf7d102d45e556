"""What the judge of 3.2 holds the ranks against: schedules written down independently, and how they play.

A *plan* is a schedule as plain data, its actions as words such as "2F0": stage 2, forward, micro-batch 0. Nothing in
here runs the learner's code; `drivers_pipeline` does, on the ranks.
"""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Plan:
    """Which rank holds each stage, into how many micro-batches the batch is cut, and each rank's actions in order."""

    placement: tuple[int, ...]
    micro_batches: int
    actions: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return "\n".join(f"rank {rank}: {' '.join(actions)}" for rank, actions in enumerate(self.actions))


def parse(word: str) -> tuple[int, str, int]:
    """ "2F0" -> (2, "F", 0)."""
    stage, kind, micro_batch = re.fullmatch(r"(-?\d+)(\D)(-?\d+)", word).groups()
    return int(stage), kind, int(micro_batch)


# --- The three schedules of the lesson --------------------------------------------------------------------------------


def gpipe_plan(stages: int, micro_batches: int) -> Plan:
    words = [[f"{rank}{kind}{m}" for kind in "FB" for m in range(micro_batches)] for rank in range(stages)]
    return Plan(tuple(range(stages)), micro_batches, tuple(map(tuple, words)))


def one_f_one_b_plan(stages: int, micro_batches: int) -> Plan:
    """A rank with as many micro-batches in flight as it may hold, or with no forward left, must run a backward."""
    words = []
    for rank in range(stages):
        own, forwards, backwards = [], 0, 0
        while backwards < micro_batches:
            if forwards < micro_batches and forwards - backwards < stages - rank:
                own.append(f"{rank}F{forwards}")
                forwards += 1
            else:
                own.append(f"{rank}B{backwards}")
                backwards += 1
        words.append(tuple(own))
    return Plan(tuple(range(stages)), micro_batches, tuple(words))


def interleaved_plan(ranks: int, micro_batches: int, chunks: int) -> Plan:
    """By the k-th forward and the k-th backward of a rank, as Megatron-LM counts them."""
    total, round_length = micro_batches * chunks, ranks * chunks
    words = []
    for rank in range(ranks):
        own: list[str] = []
        warm_up = min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks, total)

        def word(kind: str, k: int, rank: int = rank) -> str:
            chunk = k % round_length // ranks
            micro_batch = k // round_length * ranks + k % ranks
            return f"{(chunk if kind == 'F' else chunks - 1 - chunk) * ranks + rank}{kind}{micro_batch}"

        own += [word("F", k) for k in range(warm_up)]
        for k in range(warm_up, total):
            own += [word("F", k), word("B", k - warm_up)]
        own += [word("B", k) for k in range(total - warm_up, total)]
        words.append(tuple(own))
    return Plan(tuple(stage % ranks for stage in range(ranks * chunks)), micro_batches, tuple(words))


# --- Playing a plan ---------------------------------------------------------------------------------------------------


def needs(plan: Plan, word: str) -> list[str]:
    stage, kind, micro_batch = parse(word)
    if kind == "F":
        return [f"{stage - 1}F{micro_batch}"] if stage else []
    above = [f"{stage + 1}B{micro_batch}"] if stage + 1 < len(plan.placement) else []
    return [f"{stage}F{micro_batch}", *above]


def times(plan: Plan, forward: Sequence[float], backward: Sequence[float], transfer: float) -> dict[str, tuple]:
    """Start and end of every action: repeated until nothing changes, the simplest way to be right."""
    before = {later: earlier for own in plan.actions for earlier, later in itertools.pairwise(own)}
    ends: dict[str, float] = {}
    starts: dict[str, float] = {}
    changed = True
    while changed:
        changed = False
        for word in itertools.chain(*plan.actions):
            stage, kind, _ = parse(word)
            waits = needs(plan, word) + ([before[word]] if word in before else [])
            if word in ends or not all(each in ends for each in waits):
                continue
            rank = plan.placement[stage]
            there = [
                ends[each] + (transfer if plan.placement[parse(each)[0]] != rank else 0) for each in needs(plan, word)
            ]
            free = [ends[before[word]]] if word in before else []
            starts[word] = max([0, *there, *free])
            ends[word] = starts[word] + (forward if kind == "F" else backward)[stage]
            changed = True
    return {word: (starts[word], ends[word]) for word in ends}


def rounds(plan: Plan) -> list[str]:
    """The order in which actions run when every one takes a round, as far as the plan gets."""
    count = len(plan.placement)
    started = times(plan, [1] * count, [1] * count, 0)
    rank_of = {word: rank for rank, own in enumerate(plan.actions) for word in own}
    return sorted(started, key=lambda word: (started[word][0], rank_of[word]))


def peak_in_flight(words: Sequence[str]) -> int:
    return max(itertools.accumulate(1 if parse(word)[1] == "F" else -1 for word in words))


def messages(plan: Plan, rank: int) -> tuple[int, int]:
    """How many activations and how many gradients this rank sends to other ranks."""
    counts = [0, 0]
    for word in plan.actions[rank]:
        stage, kind, _ = parse(word)
        target = stage + (1 if kind == "F" else -1)
        if 0 <= target < len(plan.placement) and plan.placement[target] != rank:
            counts[kind == "B"] += 1
    return counts[0], counts[1]


# --- Plans at random, and what can be wrong with one ------------------------------------------------------------------


def random_plan(rng: random.Random, ranks: int, stages: int, micro_batches: int) -> Plan:
    """Any valid plan: stages placed at random (each rank holds one at least), then always some action that can run."""
    placement = [*range(ranks), *(rng.randrange(ranks) for _ in range(stages - ranks))]
    rng.shuffle(placement)
    empty = Plan(tuple(placement), micro_batches, ((),) * ranks)
    left = [f"{s}{kind}{m}" for s in range(stages) for kind in "FB" for m in range(micro_batches)]
    own: list[list[str]] = [[] for _ in range(ranks)]
    done: set[str] = set()
    while left:
        word = rng.choice([word for word in left if done.issuperset(needs(empty, word))])
        left.remove(word)
        done.add(word)
        own[placement[parse(word)[0]]].append(word)
    return replace(empty, actions=tuple(map(tuple, own)))


@dataclass(frozen=True)
class Broken:
    """A plan with one mistake.

    Args:
        what: the mistake, in words.
        blamed: (rank, action) at the beginning of every sentence that should be there.
        mentions: for each of these, a word that its sentence has to contain.
    """

    what: str
    plan: Plan
    blamed: frozenset[tuple[int, str]]
    mentions: dict[tuple[int, str], str]


def broken_plans(rng: random.Random, plan: Plan) -> list[Broken]:
    """One of each kind of mistake, made at a random place of a valid plan with 2 ranks or more."""
    rank = rng.randrange(len(plan.actions))
    other = (rank + 1) % len(plan.actions)
    index = rng.randrange(len(plan.actions[rank]))
    word = plan.actions[rank][index]
    _, kind, micro_batch = parse(word)
    stages = len(plan.placement)

    def change(what: str, new: dict[int, list[str]], *blamed: tuple[int, str, str]) -> Broken:
        actions = tuple(tuple(new.get(r, own)) for r, own in enumerate(plan.actions))
        mentions = {(r, action): mention for r, action, mention in blamed}
        return Broken(what, replace(plan, actions=actions), frozenset(mentions), mentions)

    own, theirs = list(plan.actions[rank]), list(plan.actions[other])
    without = own[:index] + own[index + 1 :]
    unknown = [f"{stages}{kind}{micro_batch}", f"0{kind}{plan.micro_batches}", f"0W{micro_batch}", "-1F0", "0F-1"]
    found = [
        change(f"{word} left out", {rank: without}, (rank, word, "missing")),
        change(f"{word} twice", {rank: [*own, word]}, (rank, word, "twice")),
        change(f"{word} on another rank", {rank: without, other: [*theirs, word]}, (other, word, f"rank {rank}")),
    ]
    found += [change(f"{bad} added", {rank: [*own, bad]}, (rank, bad, "does not exist")) for bad in unknown]
    backward = rng.choice([w for w in own if parse(w)[1] == "B"])
    early = [w for w in own if w != backward]
    early.insert(early.index(backward.replace("B", "F")), backward)
    stuck = change(f"{backward} before its own forward", {rank: early})
    crossed = _crossed(plan)
    for each in (stuck, *crossed):
        blamed = {(r, w): awaited for r, w, awaited in stuck_ranks(each.plan)}
        found.append(replace(each, blamed=frozenset(blamed), mentions=blamed))
    return found


def _crossed(plan: Plan) -> list[Broken]:
    """Two ranks that wait for each other: for some micro-batch the forward of one rank, which the other's needs, comes
    after the backward that needs the other's."""
    last = len(plan.placement) - 1
    if plan.placement[0] == plan.placement[last]:
        return []
    rank, final = plan.placement[0], plan.micro_batches - 1
    first, wanted = f"0F{final}", f"{last}F{final}"
    if final == 0:
        return []
    own = [w for w in plan.actions[rank] if w != first]
    own.insert(own.index("0B0") + 1, first)  # the first stage hands out the last micro-batch after the first backward
    top = [w for w in plan.actions[plan.placement[last]] if w != wanted]
    top.insert(top.index(f"{last}B0"), wanted)  # which the last stage begins only after that micro-batch
    actions = list(plan.actions)
    actions[rank], actions[plan.placement[last]] = tuple(own), tuple(top)
    return [Broken("two ranks that wait for each other", replace(plan, actions=tuple(actions)), frozenset(), {})]


def stuck_ranks(plan: Plan) -> list[tuple[int, str, str]]:
    """For each rank that does not get through: the action it stands at, and what that waits for (the first)."""
    done = set(rounds(plan))
    found = []
    for rank, own in enumerate(plan.actions):
        at = next((word for word in own if word not in done), None)
        if at:
            found.append((rank, at, next(need for need in needs(plan, at) if need not in done)))
    return found
