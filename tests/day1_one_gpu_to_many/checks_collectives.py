"""What the judge of 1.3 holds the ranks against: the inputs of every run, what they should become, and which messages.

Nothing in here runs the learner's code; `drivers_collectives` does, on the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice

import drivers_collectives as drivers
import torch
from torch import Tensor

from shardlab.observe import Call, Traffic

LOOK_AT = {
    "broadcast": "Number the ranks by distance from src. Who has the tensor in round 1, 2, 3?",
    "tree_all_reduce": "Print, per round, who sends to whom. Does every rank send up once, and only after it has added "
    "all it receives?",
    "recursive_doubling_all_reduce": "Which ranks' sum does a rank hold after each round? When N is no power of two: "
    "who adds the extra ranks in, and before which round?",
    "reduce_scatter_chunks": "Follow one chunk round the ring: rank r must be the last to add its piece of chunk r.",
    "all_gather_chunks": "In round s rank r sends chunk r - s. Which one does its left neighbour send it?",
    "reduce_scatter": "Follow one block round the ring: rank r must be the last to add its own piece of block r.",
    "all_gather": "The rank's own block must be in its place before the first round. Then rank r sends block r - s.",
    "ring_all_reduce": "Follow one chunk: N-1 hops while it is summed, N-1 hops while the sum is copied. What a rank "
    "sends is what came in the round before, with its own piece added exactly once.",
    "all_to_all": "outputs[i] comes from rank i, inputs[j] goes to rank j, and the rank's own block is copied.",
}


# --- One run of an algorithm: inputs, what they should become, what happened ------------------------------------------


KINDS = [  # elements and dtype; 840 is a multiple of every number of ranks
    (840, torch.float32),
    (10, torch.float32),
    (7, torch.bfloat16),
    (3, torch.int64),
    (0, torch.float32),
]


@dataclass
class Case:
    """One call on all ranks.

    Attributes:
        what: in words.
        arguments: of each rank.
        want: what the first argument should become on each rank: a tensor, or the list of outputs of an all-to-all.
        numel, itemsize: of the full tensor, and bytes per element.
    """

    what: str
    arguments: list[tuple]
    want: list
    numel: int
    itemsize: int


@dataclass
class Outcome:
    """What one rank did in one call."""

    rank: int
    arguments: list
    traffic: Traffic
    error: str

    @property
    def sends(self) -> list[Call]:
        """Its messages; one without an element may be sent or left out."""
        return [call for call in self.traffic.calls if call.op == "send" and call.numel]


def numbers(seed: int, ranks: int, numel: int, dtype: torch.dtype) -> list[Tensor]:
    """One vector per rank of whole numbers, small enough to be summed exactly in any dtype and order."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-9, 10, (numel,), generator=generator).to(dtype) for _ in range(ranks)]


def junk(*shape: int, like: Tensor) -> Tensor:
    """An output that nobody has filled."""
    return torch.full(shape, -99).to(like.dtype)


def all_reduce_cases(seed: int, members: Sequence[int]) -> list[Case]:
    cases = []
    for index, (numel, dtype) in enumerate(KINDS):
        inputs = numbers(seed + index, len(members), numel, dtype)
        arguments = [(tensor.view(2, -1) if numel == 10 else tensor,) for tensor in inputs]  # any shape will do
        total = sum(inputs).view_as(arguments[0][0])
        cases.append(_case(f"{numel} x {dtype}", arguments, [total] * len(members), inputs[0]))
    return cases


def broadcast_cases(seed: int, members: Sequence[int]) -> list[Case]:
    """Every kind, and every rank as the source."""
    cases = []
    count = max(len(KINDS), len(members))
    for index, ((numel, dtype), src) in enumerate(islice(zip(cycle(KINDS), cycle(members), strict=False), count)):
        inputs = numbers(seed + index, len(members), numel, dtype)
        want = inputs[members.index(src)]
        arguments = [(tensor, src) for tensor in inputs]
        cases.append(_case(f"{numel} x {dtype} from rank {src}", arguments, [want] * len(members), want))
    return cases


def reduce_scatter_cases(seed: int, members: Sequence[int]) -> list[Case]:
    cases = []
    for index, (numel, dtype) in enumerate(KINDS):
        inputs = numbers(seed + index, len(members), numel * len(members), dtype)
        arguments = [(junk(numel, like=tensor), tensor) for tensor in inputs]
        want = list(sum(inputs).view(len(members), numel))
        cases.append(_case(f"output of {numel} x {dtype}", arguments, want, inputs[0]))
    return cases


def all_gather_cases(seed: int, members: Sequence[int]) -> list[Case]:
    cases = []
    for index, (numel, dtype) in enumerate(KINDS):
        inputs = numbers(seed + index, len(members), numel, dtype)
        arguments = [(junk(len(members), numel, like=tensor), tensor) for tensor in inputs]
        want = torch.stack(inputs)
        cases.append(_case(f"input of {numel} x {dtype}", arguments, [want] * len(members), want))
    return cases


def all_to_all_cases(seed: int, members: Sequence[int]) -> list[Case]:
    """Rank i's block for rank j has (3 i + j + 2) mod 5 elements: some have none."""
    cases = []
    ranks = range(len(members))
    for dtype in (torch.float32, torch.bfloat16, torch.int64):
        blocks = [numbers(seed + i, len(members), 4, dtype) for i in ranks]
        inputs = [[blocks[i][j][: (3 * i + j + 2) % 5] for j in ranks] for i in ranks]
        want = [[inputs[i][j] for i in ranks] for j in ranks]
        arguments = [([junk(tensor.numel(), like=tensor) for tensor in want[j]], inputs[j]) for j in ranks]
        cases.append(_case(f"blocks of 0 to 4 x {dtype}", arguments, want, torch.cat(inputs[0])))
    return cases


def _case(what: str, arguments: list[tuple], want: list, full: Tensor) -> Case:
    return Case(what.replace("torch.", ""), arguments, want, full.numel(), full.itemsize)


CASES: dict[str, Callable[[int, Sequence[int]], list[Case]]] = {
    "broadcast": broadcast_cases,
    "tree_all_reduce": all_reduce_cases,
    "recursive_doubling_all_reduce": all_reduce_cases,
    "reduce_scatter": reduce_scatter_cases,
    "all_gather": all_gather_cases,
    "ring_all_reduce": all_reduce_cases,
    "all_to_all": all_to_all_cases,
}


def outcomes_of(cases: list[Case], results: Sequence) -> list[tuple[Case, list[Outcome]]]:
    """Per case, what each rank of `results` did in it."""
    return [
        (case, [outcome_of(result.rank, result.value[index]) for result in results]) for index, case in enumerate(cases)
    ]


def outcome_of(rank: int, watched: dict) -> Outcome:
    return Outcome(rank, list(watched["arguments"]), Traffic.from_data(watched["events"]), watched["error"])


# --- What must be true of a run ---------------------------------------------------------------------------------------


def check_values(name: str, ranks: int, run: Callable) -> None:
    for case, outcomes in run(name, ranks):
        for outcome in outcomes:
            check_outcome(name, f"{name} on {ranks} ranks, {case.what}", case, outcome, outcome.rank)


def check_outcome(name: str, where: str, case: Case, outcome: Outcome, place: int) -> None:
    """One rank, the one at `place` in its group, has what it should have and left its inputs alone."""
    where = f"{where}: rank {outcome.rank}"
    assert not outcome.error, f"{where} raised {outcome.error}"
    got, want = outcome.arguments[0], case.want[place]
    for index, (one, other) in enumerate(zip(got, want, strict=True) if isinstance(want, list) else [(got, want)]):
        part = f" in outputs[{index}]" if isinstance(want, list) else ""
        check_tensor(one, other, where + part, LOOK_AT[name])
    if len(outcome.arguments) == 2 and name != "broadcast":
        before, after = case.arguments[place][1], outcome.arguments[1]
        pairs = zip(before, after, strict=True) if isinstance(before, list) else [(before, after)]
        assert all(torch.equal(one, other) for one, other in pairs), (
            f"{where} changed its input. An input belongs to the caller: keep partial sums elsewhere."
        )


def check_tensor(got: Tensor, want: Tensor, where: str, look_at: str) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype), (
        f"{where} has a tensor of shape {tuple(got.shape)} and {got.dtype}, "
        f"expected {tuple(want.shape)} and {want.dtype}"
    )
    wrong = (got.flatten() != want.flatten()).nonzero().flatten().tolist()
    assert not wrong, (
        f"{where} has {got.flatten()[wrong[0]].item():g} in element {wrong[0]}, "
        f"expected {want.flatten()[wrong[0]].item():g}; {len(wrong)} of {want.numel()} elements are wrong. {look_at}"
    )


def check_messages_only(where: str, outcome: Outcome) -> None:
    assert not outcome.error, f"{where} rank {outcome.rank} raised {outcome.error}"
    others = [call for call in outcome.traffic.calls if call.op not in ("send", "recv")]
    assert not others, (
        f"{where}: rank {outcome.rank} called {others[0].op} (line {others[0].line}). This lesson builds the "
        "collectives: only isend, irecv and batch_isend_irecv may communicate."
    )


def check_background(where: str, rank: int, traffic: Traffic, largest: int) -> None:
    """A ring in the background is a ring: messages only, and none larger than a chunk."""
    others = [call for call in traffic.calls if call.op not in ("send", "recv")]
    assert not others, f"{where}: rank {rank} called {others[0].op}, a ring only sends and receives, also with async_op"
    elements = max((call.numel for call in traffic.calls), default=0)
    assert elements <= largest, (
        f"{where}: rank {rank} sent {elements} elements in one message, a chunk has {largest} at most, async_op or not"
    )


def check_ring(where: str, outcomes: list[Outcome], rounds: int, largest: int, itemsize: int, exact: bool) -> None:
    """Every rank sends once in each round, always to the same neighbour, at most `largest` elements.

    Args:
        exact: every message has `largest` elements, so that the bytes are known to the byte.
    """
    some_are_empty = largest == 0 or (largest == 1 and not exact)
    for outcome in outcomes:
        check_messages_only(where, outcome)
        who = f"{where}: rank {outcome.rank}"
        sends = outcome.sends
        assert len(sends) == rounds or (some_are_empty and len(sends) < rounds), (
            f"{who} sent {len(sends)} messages; a ring has {rounds} rounds, one message in each"
        )
        elements = max((call.numel for call in sends), default=0)
        assert elements <= largest, (
            f"{who} sent {elements} elements in one message, a chunk has at most {largest}. A ring never sends the "
            "whole tensor: cut it into one chunk per rank."
        )
        sent = sum(call.sent_bytes for call in sends)
        bound = rounds * largest * itemsize
        assert sent == bound or (not exact and sent < bound), f"{who} sent {sent} bytes, the ring's bound is {bound}"
        peers = sorted({call.peer for call in sends})
        assert len(peers) <= 1, f"{who} sent to ranks {peers}: on a ring everything goes to the right neighbour"


def rounds_of(where: str, outcomes: list[Outcome]) -> int:
    """Rounds of an algorithm in which a rank either sends or receives one message at a time."""
    to_do = [[(call.op, call.peer) for call in outcome.traffic.calls if call.numel] for outcome in outcomes]
    clock = [0] * len(outcomes)
    while any(to_do):
        pair = next(
            (
                (rank, events[0][1])
                for rank, events in enumerate(to_do)
                if events and events[0][0] == "send" and to_do[events[0][1]][:1] == [("recv", rank)]
            ),
            None,
        )
        assert pair, f"{where}: the sends and receives of the ranks do not meet in the order they were made: {to_do}"
        sender, receiver = pair
        del to_do[sender][0], to_do[receiver][0]
        clock[sender] = clock[receiver] = 1 + max(clock[sender], clock[receiver])
    return max(clock)


def check_in_group(name: str, lab, seed: int) -> None:
    """The group [3, 1] of 4 ranks works, in its own order, and ranks outside it are refused."""
    members = drivers.group_order([3, 1])
    cases = CASES[name](seed, members)
    places = {rank: place for place, rank in enumerate(members)}
    calls = [[case.arguments[places.get(rank, 0)] for case in cases] for rank in range(4)]
    results = lab.on_ranks(4).run(drivers.call_each_in_group, name, members, per_rank=calls)
    for case, outcomes in outcomes_of(cases, results):
        for outcome in outcomes:
            where = f"{name} in the group {members} of 4 ranks, {case.what}"
            if outcome.rank in places:
                check_outcome(name, where, case, outcome, places[outcome.rank])
                check_messages_only(where, outcome)
            else:
                assert outcome.error.startswith("ValueError"), (
                    f"{where}: rank {outcome.rank} is not in the group, so it must raise ValueError: "
                    f"got {outcome.error or 'no error'}"
                )


def check_refusals(name: str, lab) -> None:
    """Each bad input raises ValueError on every rank, before anything is sent."""
    for result in lab.on_ranks(2).run(drivers.refuse_each, name):
        for what, outcome in result.value.items():
            error = outcome["error"]
            assert error.startswith("ValueError: "), (
                f"{name} with {what}: rank {result.rank} must raise ValueError, got {error or 'no error'}. "
                "Call check first, then compare lengths."
            )
            calls = Traffic.from_data(outcome["events"]).calls
            assert not calls, (
                f"{name} with {what}: rank {result.rank} called {calls[0].op} before it raised ValueError. Bad input "
                "is refused before any communication, else ranks with good input wait for a message that never comes."
            )
