"""Graded tests of lesson 3.4.

Right numbers alone do not earn the points: ranks that hold all experts have them too. What is graded is what a rank
holds (an N-th of the experts), what travels (each kept claim that leaves its rank once there and once back), and that
outputs, gradients, losses and drops are those of one process, however the tokens lie on the ranks.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Sequence
from typing import Any

import checks_mixture_of_experts as checks
import drivers_mixture_of_experts as drivers
import pytest
import torch
from torch import Tensor

from shardlab.grade import exercise
from shardlab.models import TransformerConfig, build, next_token_loss
from shardlab.observe import Traffic

torch.set_num_threads(1)  # in the judge, whose matrices are tiny: more threads wait for each other

OPTIONS = {
    "hidden": 12,
    "ffn": 32,
    "experts": 8,
    "top_k": 2,
    "capacity_factor": None,
    "shared": False,
    "softmax": "after",
    "balance_coefficient": 0.5,
    "z_coefficient": 0.25,
}
EXACT, FLOAT32 = 1e-11, 2e-5  # allowed errors, of the largest element


@pytest.fixture
def shared_seed(request) -> int:
    """Another number for another `--seed`, the same in all tests: they share runs, which cost most."""
    return zlib.crc32(request.config.getoption("seed").encode())


def random(seed: int, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def assert_close(got: Tensor | None, expected: Tensor, what: str, tolerance: float = FLOAT32) -> None:
    """Within `tolerance` of the largest element."""
    assert got is not None, f"{what}: expected a tensor of shape {list(expected.shape)}, there is none"
    assert got.shape == expected.shape, f"{what}: expected shape {list(expected.shape)}, got {list(got.shape)}"
    if not got.numel():
        return
    error, largest = (got - expected).abs().max().item(), expected.abs().max().item()
    assert error <= tolerance * max(largest, 1e-6), (
        f"{what}: off by {error:.2e}, the largest element is {largest:.2e}\n"
        f"expected {expected.flatten()[:8].tolist()}\ngot      {got.flatten()[:8].tolist()}"
    )


def calls_of(data: list[dict], op: str) -> list[int]:
    """Bytes that this rank sends in each call of an operation."""
    return [call.sent_bytes for call in Traffic.from_data(data).calls if call.op == op]


# --- The router -------------------------------------------------------------------------------------------------------

ROUTERS = [("after", 2, 7), ("before", 2, 7), ("before", 1, 5), ("after", 1, 1), ("after", 3, 0)]


@exercise("3.4", "TopKRouter", points=4)
@pytest.mark.parametrize("how", ["float32", "bfloat16", "autocast"])
def test_router(lab, seed, how):
    cases = []
    for number, (softmax, top_k, count) in enumerate(ROUTERS):
        options = OPTIONS | {"softmax": softmax, "top_k": top_k}
        weight = checks.weights_of(options, seed + number)["router.weight"]
        tokens, upstream = random(seed + number, count, 12), random(seed - number, count, top_k)
        cases.append((options, weight, tokens, upstream, how))
    found = lab.on_ranks(1).run(drivers.route, cases)[0].value
    for (options, weight, tokens, upstream, _), got in zip(cases, found, strict=True):
        story = f"{how}, softmax {options['softmax']} top-k, k = {options['top_k']}, {len(tokens)} tokens"
        rounded = (lambda x: x.bfloat16()) if how == "bfloat16" else (lambda x: x)
        leaf, of = rounded(tokens).double().requires_grad_(), rounded(weight).double().requires_grad_()
        logits = leaf @ of.T
        probabilities = logits.softmax(-1)
        chosen = got["experts"]
        assert chosen.shape == upstream.shape and chosen.dtype == torch.int64, f"{story}: experts are [T, k] int64"
        for name in ("logits", "probabilities", "gates"):
            assert got[name].dtype == torch.float32, (
                f"{story}: {name} are {got[name].dtype}. The router computes in float32 whatever the tokens are, also "
                "under autocast, which changes the type of what F.linear gets"
            )
        assert_close(got["logits"], logits.detach(), f"{story}: logits, computed in float32", 1e-6)
        assert_close(got["probabilities"], probabilities.detach(), f"{story}: softmax over all experts", 1e-6)
        best = logits.gather(-1, chosen)
        assert_close(best.detach(), logits.topk(options["top_k"]).values.detach(), f"{story}: the k best, best first")
        gates = best.softmax(-1) if options["softmax"] == "after" else probabilities.gather(-1, chosen)
        assert_close(got["gates"], gates.detach(), f"{story}: gates (are they to sum to 1?)", 1e-6)
        ((gates * upstream).sum() + 0.1 * logits.square().sum()).backward()
        allowed = 1e-2 if how == "bfloat16" else FLOAT32  # gradients are rounded to the type of what they belong to
        assert_close(got["tokens_grad"].double(), leaf.grad, f"{story}: gradient of the tokens", allowed)
        assert_close(got["weight_grad"].double(), of.grad, f"{story}: gradient of the weight", allowed)


# --- Losses -----------------------------------------------------------------------------------------------------------


@exercise("3.4", "SumOverRanks", points=2)
@pytest.mark.parametrize("ranks", [1, 3])
def test_sum_over_ranks(lab, seed, ranks):
    own = [(random(seed + rank, 2, 5), random(seed + 9 + rank, 2, 5)) for rank in range(ranks)]
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.sums, per_rank=own)):
        tensors, upstream = zip(*own, strict=True)
        assert_close(result.value["sum"], sum(tensors), f"rank {rank} of {ranks}: the sum", 1e-6)
        assert_close(result.value["tensor"], tensors[rank], f"rank {rank} of {ranks}: the tensor stays as it is", 0)
        assert_close(
            result.value["gradient"],
            sum(upstream),
            f"rank {rank} of {ranks}: every rank's loss has this rank's tensor in it, so its gradient is the sum of "
            "what all of them send back",
            1e-6,
        )


COUNTS = {1: [7], 2: [3, 5], 3: [4, 0, 2], 4: [1, 6, 0, 3]}  # tokens of each rank


def check_loss(lab, name: str, ranks: int, whole: Sequence[tuple[Tensor, ...]], formula) -> None:
    """Value and gradient of a loss on each case, whose tensors are those of the whole batch."""
    factors = [1.0, 2.0, -0.5, 3.0][:ranks]
    own = [[tuple(part.split(COUNTS[ranks])[rank] for part in case) for case in whole] for rank in range(ranks)]
    results = lab.on_ranks(ranks).run(drivers.losses, factors, name, per_rank=own)
    for number, case in enumerate(whole):
        leaf = case[0].double().requires_grad_()
        expected = formula(leaf, *case[1:])
        (sum(factors) * expected).backward()
        for rank, result in enumerate(results):
            got, story = result.value[number], f"rank {rank} of {COUNTS[ranks]} tokens, case {number}"
            assert_close(
                got["loss"].double(), expected.detach(), f"{story}: the loss is that of the whole batch, on every rank"
            )
            assert_close(
                got["gradient"].double(),
                leaf.grad.split(COUNTS[ranks])[rank],
                f"{story}: gradient. Every rank's own loss is a multiple of it (here by {factors}), so what comes back "
                "is the sum of theirs",
            )
            calls = Traffic.from_data(got["traffic"]).calls
            most = 4 * (2 * case[0].shape[1] + 2)
            assert all(call.op == "all_reduce" for call in calls) and sum(call.payload_bytes for call in calls) <= 2 * (
                most
            ), f"{story}: sums travel, at most {most} bytes each way, and not tokens; got {[str(c) for c in calls]}"


@exercise("3.4", "load_balancing_loss", points=5)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_balance_is_that_of_the_whole_batch(lab, seed, ranks):
    whole = []
    for k, experts in ((1, 4), (2, 6), (3, 3)):
        probabilities = (2 * random(seed + k, sum(COUNTS[ranks]), experts)).softmax(-1)
        whole.append((probabilities, probabilities.topk(k).indices))
    check_loss(lab, "load_balancing_loss", ranks, whole, checks.balance)


@exercise("3.4", "load_balancing_loss", points=1)
def test_balance_in_known_cases(lab):
    one, other, even = [0.9, 0.1], [0.1, 0.9], [0.5, 0.5]
    cases = [([one], [[0]], 1.8), ([one, other], [[0], [1]], 1.0), ([even] * 4, [[0]] * 4, 1.0), ([[1, 0.0]], [[1]], 0)]
    for probabilities, assignment, expected in cases:
        got = lab.call("load_balancing_loss", torch.tensor(probabilities), torch.tensor(assignment))
        assert float(got) == pytest.approx(expected, abs=1e-6), (
            f"probabilities {probabilities}, experts {assignment}: expected {expected}, got {float(got)}. 1 is even; "
            "the fractions are of claims, the means of probabilities"
        )


@exercise("3.4", "router_z_loss", points=3)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_z_loss(lab, seed, ranks):
    count = sum(COUNTS[ranks])
    whole = [(random(seed, count, 5),), (300 + 10 * random(seed + 1, count, 3),)]
    check_loss(lab, "router_z_loss", ranks, whole, checks.z_loss)


# --- Who goes where ---------------------------------------------------------------------------------------------------


def claims_at_random(seed: int, count: int, k: int, experts: int) -> Tensor:
    return torch.rand(count, experts, generator=torch.Generator().manual_seed(seed)).topk(k).indices


def dispatch_by_the_book(
    tokens: Tensor, chosen: Tensor, capacity: int | None, experts: int, ahead: Tensor | None = None
) -> dict[str, Tensor]:
    """`drivers.dispatches` of one case, claim by claim."""
    kept = checks.kept_by_the_book(chosen, capacity, experts, ahead)
    count, k = chosen.shape
    slots = [
        token * k + choice
        for expert in range(experts)
        for choice in range(k)
        for token in range(count)
        if chosen[token, choice] == expert and kept[token, choice]
    ]
    gradient = torch.zeros_like(tokens)
    for place, slot in enumerate(slots):
        gradient[slot // k] += 1 + place
    rows = tokens[torch.tensor([slot // k for slot in slots], dtype=torch.int64)]
    counts = [int((kept & (chosen == expert)).sum()) for expert in range(experts)]
    return {
        "rows": rows,
        "slots": torch.tensor(slots, dtype=torch.int64),
        "counts": torch.tensor(counts),
        "gradient": gradient,
    }


@exercise("3.4", "dispatch", points=5)
@pytest.mark.parametrize("capacity", [None, 0, 1, 3], ids=lambda capacity: f"capacity {capacity}")
def test_dispatch(lab, seed, capacity):
    cases = []
    for number, (count, k, experts) in enumerate([(7, 2, 4), (0, 2, 3), (1, 1, 1), (9, 3, 5), (11, 1, 20), (6, 4, 4)]):
        tokens = random(seed + number, count, 3, dtype=torch.float64)
        chosen = claims_at_random(seed - number, count, k, experts)
        ahead = torch.randint(0, 3, (k, experts), generator=torch.Generator().manual_seed(seed + number))
        cases += [(tokens, chosen, capacity, experts), (tokens, chosen, capacity, experts, ahead)]
    found = lab.on_ranks(1).run(drivers.dispatches, cases)[0].value
    for case, got in zip(cases, found, strict=True):
        tokens, chosen, capacity, experts, *ahead = case
        story = (
            f"{len(tokens)} tokens choose {chosen.tolist()} of {experts} experts, capacity {capacity}, ahead "
            f"{ahead[0].tolist() if ahead else None}"
        )
        for name, expected in dispatch_by_the_book(*case).items():
            assert got[name].shape == expected.shape and bool((got[name] == expected).all()), (
                f"{story}: {name}: expected {expected.tolist()}, got {got[name].tolist()}. Sorted by expert, then "
                "choice, then token; first come, first kept"
            )


@exercise("3.4", "combine", points=4)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=["float64", "bfloat16"])
def test_combine(lab, seed, dtype):
    cases = []
    for number, (count, k, kept) in enumerate([(5, 2, 10), (5, 2, 6), (4, 1, 3), (3, 3, 0), (0, 2, 0), (1, 3, 3)]):
        generator = torch.Generator().manual_seed(seed + number)
        slots = torch.randperm(count * k, generator=generator)[:kept]
        rows, upstream = (random(seed + number + i, size, 4).to(dtype) for i, size in ((1, kept), (2, count)))
        gates = random(seed - number, count, k).to(torch.float64 if dtype == torch.float64 else torch.float32)
        cases.append((rows, slots, gates, upstream))
    found = lab.on_ranks(1).run(drivers.combines, cases)[0].value
    exact = EXACT if dtype == torch.float64 else 5e-3
    for (rows, slots, gates, upstream), got in zip(cases, found, strict=True):
        story = f"{dtype}, gates {list(gates.shape)}, slots {slots.tolist()}"
        leaf, of_gates = rows.double().requires_grad_(), gates.double().requires_grad_()
        y = torch.zeros(len(gates), 4, dtype=torch.float64)
        for place, slot in enumerate(slots.tolist()):
            token, choice = divmod(slot, gates.shape[1])
            y = y + torch.eye(len(gates), dtype=torch.float64)[token].outer(leaf[place] * of_gates[token, choice])
        assert got["output"].dtype == dtype, f"{story}: the output is {got['output'].dtype}, the rows are {dtype}"
        assert_close(
            got["output"].double(), y.detach(), f"{story}: row i answers claim slots[i], times its gate", exact
        )
        if not len(slots):
            continue
        y.backward(upstream.double())
        assert_close(got["rows_grad"].double(), leaf.grad, f"{story}: gradient of the rows", exact)
        assert_close(
            got["gates_grad"].double(), of_gates.grad, f"{story}: gradient of the gates, the router learns by it", exact
        )


@exercise("3.4", "combine", points=1)
def test_many_small_answers_are_added_in_float32(lab):
    k = 64
    gates, rows = torch.full((1, k), 1 / 512), torch.ones(k, 1, dtype=torch.bfloat16)
    gates[0, 0], slots = 1.0, torch.arange(k)
    got = lab.on_ranks(1).run(drivers.combines, [(rows, slots, gates, torch.ones(1, 1).bfloat16())])[0].value[0]
    assert got["output"].item() == torch.tensor(1 + 63 / 512).bfloat16().item(), (
        f"1 and 63 times 1/512 come to 1.123, not to {got['output'].item()}: in bfloat16 1 + 1/512 is 1"
    )


@exercise("3.4", "share_capacity", points=4)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_share_capacity(lab, seed, ranks):
    cases = []
    for k, experts, capacity in ((1, 3, 4), (2, 4, 5), (3, 5, 0), (2, 2, None), (2, 3, 100)):
        claims = torch.randint(0, 5, (ranks, k, experts), generator=torch.Generator().manual_seed(seed + k))
        cases.append((claims, capacity))
    found = lab.on_ranks(1).run(drivers.shares, cases)[0].value
    for (claims, capacity), (kept, ahead) in zip(cases, found, strict=True):
        story = f"claims [rank, choice, expert] {claims.tolist()}, capacity {capacity}"
        expected, before = torch.zeros_like(claims), torch.zeros_like(claims)
        for expert in range(claims.shape[2]):
            taken: list[int] = []  # by whom
            for choice in range(claims.shape[1]):
                for rank in range(ranks):
                    before[rank, choice, expert] = len(taken) - taken.count(rank)
                    room = claims.sum() if capacity is None else max(capacity - len(taken), 0)
                    expected[rank, choice, expert] = min(int(claims[rank, choice, expert]), int(room))
                    taken += [rank] * int(claims[rank, choice, expert])
        assert kept.tolist() == expected.tolist(), (
            f"{story}: expected to keep {expected.tolist()}, got {kept.tolist()}. First all first choices, rank by rank"
        )
        assert ahead.tolist() == before.tolist(), (
            f"{story}: ahead are claims of other ranks that come before: expected {before.tolist()}, got "
            f"{ahead.tolist()}"
        )


@exercise("3.4", "Load", points=2)
def test_load(lab):
    cases = [([6, 2, 0, 0], [4, 2, 0, 0], 0.25, 3.0), ([1, 1], [1, 1], 0.0, 1.0), ([0, 0, 0], [0, 0, 0], 0.0, 1.0)]
    cases += [([0, 7], [0, 2], 5 / 7, 2.0), ([5], [0], 1.0, 1.0)]
    found = lab.on_ranks(1).run(drivers.loads, [tuple(map(torch.tensor, case[:2])) for case in cases])[0].value
    for (asked, kept, drops, imbalance), got in zip(cases, found, strict=True):
        assert got == pytest.approx((drops, imbalance)), (
            f"asked {asked}, kept {kept}: drop rate {drops} and imbalance {imbalance}, got {got}"
        )


# --- The exchange -----------------------------------------------------------------------------------------------------


@exercise("3.4", "AllToAll", points=5)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_rows_travel_and_their_gradients_come_back(lab, seed, ranks):
    kinds = [(torch.float64, 3), (torch.bfloat16, 2), (torch.float32, 1)]
    sizes = torch.Generator().manual_seed(seed)
    matrices = [torch.randint(0, most, (ranks, ranks), generator=sizes) for most in (5, 2)]
    matrices += [torch.zeros(ranks, ranks, dtype=torch.int64)]  # nobody sends anything
    parts, own = [], [[] for _ in range(ranks)]
    for (dtype, width), matrix in zip(kinds, matrices, strict=True):
        made, back = (
            [[random(s + 10 * r + t, int(matrix[r, t]), width).to(dtype) for t in range(ranks)] for r in range(ranks)]
            for s in (seed, seed + 100)
        )
        parts.append((made, back))
        for rank in range(ranks):
            send, receive = matrix[rank].tolist(), matrix[:, rank].tolist()
            own[rank].append((torch.cat(made[rank]), send, receive, torch.cat([row[rank] for row in back])))
    results = lab.on_ranks(ranks).run(drivers.exchanges, per_rank=own)
    for rank, result in enumerate(results):
        for (made, back), given, got in zip(parts, own[rank], result.value, strict=True):
            rows, send, receive, _ = given
            story = f"rank {rank} of {ranks} sends {send} and receives {receive} rows"
            received, gradient = torch.cat([row[rank] for row in made]), torch.cat(back[rank])
            assert_close(got["received"].double(), received.double(), f"{story}: what arrives, in rank order", 0)
            assert_close(got["gradient"].double(), gradient.double(), f"{story}: gradients go back to their rows", 0)
            row_bytes = rows.shape[1] * rows.element_size()
            for direction, leaving in (("forward", send), ("backward", receive)):
                sent = Traffic.from_data(got[direction]).sent_bytes()
                expected = (sum(leaving) - leaving[rank]) * row_bytes
                assert sent == expected, (
                    f"{story}, {direction}: {expected} bytes leave this rank, got {sent}. What stays is not sent, and "
                    "parts are not padded to one size"
                )


# --- The layer --------------------------------------------------------------------------------------------------------

ALL4 = [[0, 1, 2, 3]]
ACROSS = [[0, 2], [1, 3]]  # of two tensor-parallel neighbours, the ranks with different tokens
SCENARIOS: dict[str, list[tuple[dict, Sequence[int], Any, Any]]] = {
    # options, tokens of each rank of a batch group, expert groups, batch groups
    "1 rank": [
        ({}, [9], [[0]], [[0]]),
        ({"capacity_factor": 0.75, "shared": True, "softmax": "before"}, [9], [[0]], [[0]]),
        ({"balance_coefficient": 0.0, "z_coefficient": 0.0}, [0], [[0]], [[0]]),
    ],
    "2 ranks": [
        ({}, [0, 0], [[0, 1]], [[0, 1]]),
        ({"top_k": 1, "capacity_factor": 1.0, "shared": True}, [3, 8], [[0, 1]], [[0, 1]]),
        ({"softmax": "before", "z_coefficient": 0.0}, [5, 0], [[0], [1]], [[0, 1]]),
    ],
    "3 ranks": [
        ({"experts": 6, "top_k": 3, "capacity_factor": 1.25}, [7, 0, 4], [[0, 1, 2]], [[0, 1, 2]]),
    ],
    "4 ranks": [
        ({}, [3, 0, 7, 1], ALL4, ALL4),
        ({"capacity_factor": 0.5, "shared": True, "softmax": "before"}, [3, 1, 0, 7], ALL4, ALL4),
        ({"capacity_factor": 1.0, "top_k": 3}, [2, 5, 1, 4], [[0, 1], [2, 3]], ALL4),
    ],
    "tensor parallel neighbours": [
        ({"shared": True}, [4, 7], ACROSS, ACROSS),
        ({"capacity_factor": 0.75, "top_k": 1, "softmax": "before"}, [6, 3], ACROSS, ACROSS),
    ],
}


@pytest.fixture(scope="module")
def runs() -> dict[Any, Any]:
    """What was run already, by name: several tests look at one run from different sides."""
    return {}


def run_scenarios(runs: dict, lab, seed: int, name: str) -> list[dict]:
    """One run of all ranks for a list of scenarios; for each: options, x and what came back by rank, and the
    reference."""
    if name in runs:
        return runs[name]
    ranks = {"1": 1, "2": 2, "3": 3}.get(name[0], 4)
    scenarios, own, made = [], [[] for _ in range(ranks)], []
    for number, (changes, counts, expert, batch) in enumerate(SCENARIOS[name]):
        options = OPTIONS | changes
        weights = checks.weights_of(options, seed + number)
        x = checks.tokens_of(options, weights, sum(counts), seed - number)
        upstream = random(seed + 20 + number, sum(counts), options["hidden"])
        for rank in range(ranks):
            place = checks.groups_with(rank, batch).index(rank)
            own[rank].append((x.split(list(counts))[place], upstream.split(list(counts))[place]))
        scenarios.append({"options": options, "weights": weights, "expert": expert, "batch": batch})
        made.append(
            {"options": options, "counts": counts, "expert": expert, "batch": batch, "weights": weights}
            | {"x": x, "whole": checks.run_one_process(options, weights, x, upstream, len(counts))}
        )
    results = lab.on_ranks(ranks).run(drivers.layers, scenarios, per_rank=own)
    for number, case in enumerate(made):
        case["ranks"] = [result.value[number] for result in results]
    runs[name] = made
    return made


def each_rank(case: dict):
    """(rank, what came back from it, its place among the ranks with different tokens, story)."""
    for rank, got in enumerate(case["ranks"]):
        place = checks.groups_with(rank, case["batch"]).index(rank)
        options = case["options"]
        story = (
            f"rank {rank} of {len(case['ranks'])}, tokens {list(case['counts'])}, expert groups {case['expert']}, "
            f"k = {options['top_k']}, capacity factor {options['capacity_factor']}, softmax {options['softmax']}"
        )
        yield rank, got, place, story


@exercise("3.4", "ExpertParallelMoE", points=6)
@pytest.mark.parametrize("name", SCENARIOS)
def test_output_losses_and_drops_are_those_of_one_process(lab, shared_seed, runs, name):
    for case in run_scenarios(runs, lab, shared_seed, name):
        whole, counts = case["whole"], list(case["counts"])
        for _, got, place, story in each_rank(case):
            assert_close(got["output"].double(), whole["output"].split(counts)[place], f"{story}: output")
            assert got["auxiliary"] == pytest.approx(whole["auxiliary"], rel=1e-5, abs=1e-9), (
                f"{story}: the auxiliary losses are those of the whole batch: {whole['auxiliary']}, got "
                f"{got['auxiliary']}"
            )
            assert got["asked"] == whole["asked"], (
                f"{story}: claims for each expert in the whole batch: {whole['asked']}, got {got['asked']}"
            )
            assert got["kept"] == whole["kept"], (
                f"{story}: of claims {whole['asked']} the experts keep {whole['kept']}, got {got['kept']}. The "
                "capacity is one of the whole batch, whose tokens come rank by rank"
            )


@exercise("3.4", "ExpertParallelMoE", points=8)
@pytest.mark.parametrize("name", SCENARIOS)
def test_gradients_are_those_of_one_process(lab, shared_seed, runs, name):
    for case in run_scenarios(runs, lab, shared_seed, name):
        whole, counts, units = case["whole"], list(case["counts"]), len(case["counts"])
        for rank, got, place, story in each_rank(case):
            assert_close(
                got["gradient"].double(), units * whole["gradient"].split(counts)[place], f"{story}: tokens' gradient"
            )
            for parameter in got["names"]:
                holders = [case["ranks"][other] for other in checks.groups_with(rank, case["batch"])]
                holders = [of for of in holders if parameter in of["names"]]
                assert all(parameter in of["gradients"] for of in holders), (
                    f"{story}: {parameter} has no gradient. Also an expert that no token came to has one: zeros"
                )
                total = sum(of["gradients"][parameter].double() for of in holders)
                kind = (
                    "summed over those that hold the expert (each has the sum over the ranks it exchanges tokens with)"
                    if "experts" in parameter
                    else "summed over the ranks"
                )
                assert_close(
                    total / units,
                    whole["gradients"][parameter],
                    f"{story}: gradient of {parameter}, {kind} and divided by the {units} losses",
                )


@exercise("3.4", "ExpertParallelMoE", points=4)
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_rank_holds_its_experts_and_no_other(lab, shared_seed, runs, name):
    for case in run_scenarios(runs, lab, shared_seed, name):
        options = case["options"]
        for rank, got, place, story in each_rank(case):
            group = checks.groups_with(rank, case["expert"])
            share = options["experts"] // len(group)
            first = group.index(rank) * share
            own = {f"experts.{expert}." for expert in range(first, first + share)}
            expected = [
                each for each in case["weights"] if "experts" not in each or any(each.startswith(own_) for own_ in own)
            ]
            assert sorted(got["names"]) == sorted(expected), (
                f"{story}: this rank has experts {first} ... {first + share - 1}, so it has the parameters {expected}, "
                f"got {got['names']}"
            )
            parameters = sum(case["weights"][each].nbytes for each in expected)
            inputs = 4 * list(case["counts"])[place] * options["hidden"]
            slack = 4 * inputs + 2048  # of inputs and of counts; another expert would be 4608
            assert got["held"] <= parameters + slack, (
                f"{story}: this rank's parameters take {parameters} bytes, the layer holds {got['held']}"
            )


@exercise("3.4", "ExpertParallelMoE", points=5)
@pytest.mark.parametrize("name", [name for name in SCENARIOS if name[0] != "1"])
def test_what_leaves_a_rank_are_its_claims_for_other_ranks_experts(lab, shared_seed, runs, name):
    for case in run_scenarios(runs, lab, shared_seed, name):
        options = case["options"]
        leaving = rows_between(case)
        for rank, got, _, story in each_rank(case):
            out = sum(count for (source, target), count in leaving.items() if source == rank != target)
            back = sum(count for (source, target), count in leaving.items() if target == rank != source)
            row = 4 * options["hidden"]
            single = len(checks.groups_with(rank, case["expert"])) == 1
            expected = [] if single else [out * row, back * row]
            for direction in ("forward", "backward"):
                found = calls_of(got[direction], "all_to_all")
                assert found == expected, (
                    f"{story}, {direction}: two all-to-alls, in which {expected} bytes leave this rank (rows of {row} "
                    f"bytes: kept claims for other ranks' experts, and what goes back), got {found or 'none'}"
                )
            rest = sum(call.sent_bytes for call in Traffic.from_data(got["forward"]).calls if call.op != "all_to_all")
            most = 8 * options["experts"] * (len(case["counts"]) * options["top_k"] + 2) + 64
            assert rest <= most, f"{story}: besides rows only counts and sums travel, at most {most} bytes; got {rest}"


def rows_between(case: dict) -> dict[tuple[int, int], int]:
    """Kept claims that go from rank to rank."""
    options, counts = case["options"], list(case["counts"])
    chosen = (case["x"] @ case["weights"]["router.weight"].T).topk(options["top_k"]).indices
    capacity = checks.capacity_of(options, chosen.numel())
    kept = checks.kept_by_the_book(chosen, capacity, options["experts"])
    found: dict[tuple[int, int], int] = {}
    for rank in range(len(case["ranks"])):
        group = checks.groups_with(rank, case["expert"])
        place = checks.groups_with(rank, case["batch"]).index(rank)
        share = options["experts"] // len(group)
        begin = sum(counts[:place])
        for token in range(begin, begin + counts[place]):
            for choice in range(options["top_k"]):
                if kept[token, choice]:
                    pair = rank, group[int(chosen[token, choice]) // share]
                    found[pair] = found.get(pair, 0) + 1
    return found


@exercise("3.4", "ExpertParallelMoE", points=1)
def test_the_router_of_a_bfloat16_layer_decides_in_float32(lab, seed):
    """Two experts whose logits differ by less than bfloat16 can tell."""
    options = OPTIONS | {"experts": 4, "top_k": 1}
    weights = checks.weights_of(options, seed)
    weights["router.weight"] = torch.zeros(4, options["hidden"])
    weights["router.weight"][1:3, :3] = torch.tensor([[4.0, 0.25, 0.0], [4.0, 0.0, 0.25]])
    x = torch.zeros(64, options["hidden"])
    x[:, 0] = 16
    x[:, 1:3] = torch.tensor([[1.0, 0.0], [0.0, 1.0]]).repeat(32, 1)
    scenario = {"options": options, "weights": weights, "expert": [[0, 1]], "batch": [[0, 1]]}
    own = [[(x, torch.ones_like(x))]] * 2
    results = lab.on_ranks(2).run(drivers.layers, [scenario | {"dtype": torch.bfloat16}], per_rank=own)
    for rank, result in enumerate(results):
        assert result.value[0]["asked"] == [0, 64, 64, 0], (
            f"rank {rank}: logits 64.25 and 64: half of the 128 tokens are for expert 1, half for 2, got "
            f"{result.value[0]['asked']}. In bfloat16 both logits are 64"
        )
        assert result.value[0]["output"].dtype == torch.bfloat16, "a bfloat16 layer gives bfloat16"


@exercise("3.4", "ExpertParallelMoE", points=1)
@pytest.mark.parametrize("ranks", [2, 3])
def test_bad_input_is_refused_on_every_rank_before_anything_is_sent(lab, ranks):
    options = OPTIONS | {"experts": 6}
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.refused_layers, options)):
        for what, (message, calls) in result.value.items():
            assert message and not calls, (
                f"rank {rank} of {ranks}, bad {what}: a ValueError before any call; got {message!r} after {calls} calls"
            )


# --- A model ----------------------------------------------------------------------------------------------------------

MODEL = TransformerConfig(vocab=19, hidden=12, layers=2, heads=2, kv_heads=1, ffn=20, sequence=9)
MODEL_OPTIONS = OPTIONS | {"ffn": 16, "experts": 4, "shared": True, "capacity_factor": 1.0, "balance_coefficient": 0.1}
STEPS = 3


@functools.lru_cache(maxsize=4)
def train_alone(seed: int, rows: int) -> dict[str, Any]:
    model = checks.model_with_experts(MODEL, MODEL_OPTIONS, seed)
    tokens = model_tokens(seed, rows)
    found: dict[str, Any] = {"losses": [], "auxiliary": []}
    found["first"] = {name: drivers.plain(parameter) for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(STEPS):
        loss = next_token_loss(model(tokens), tokens)
        auxiliary = sum(block.mlp.auxiliary for block in model.blocks)
        (loss + auxiliary).backward()
        optimizer.step()
        optimizer.zero_grad()
        found["losses"].append(loss.item())
        found["auxiliary"].append(auxiliary.item())
    return found | {"last": {name: drivers.plain(parameter) for name, parameter in model.named_parameters()}}


def model_tokens(seed: int, rows: int) -> Tensor:
    return torch.randint(MODEL.vocab, (rows, MODEL.sequence), generator=torch.Generator().manual_seed(seed))


def assert_trained_alike(results, alone: dict, groups: dict, story: str) -> None:
    """Losses, and weights before and after, are those of one process."""
    for rank, result in enumerate(results):
        batch = checks.groups_with(rank, groups["batch"])
        got = result.value
        for step in range(STEPS):
            mean = sum(results[other].value["losses"][step] for other in batch) / len(batch)
            assert mean == pytest.approx(alone["losses"][step], rel=2e-5), (
                f"{story}, step {step}: mean loss of ranks {batch} is {mean}, that of one process "
                f"{alone['losses'][step]}"
            )
            assert got["auxiliary"][step] == pytest.approx(alone["auxiliary"][step], rel=2e-5), (
                f"{story}, step {step}, rank {rank}: auxiliary loss {got['auxiliary'][step]}, one process has "
                f"{alone['auxiliary'][step]}"
            )
        for moment in ("first", "last"):
            for name, weight in got[moment].items():
                assert_close(weight, alone[moment][name], f"{story}, rank {rank}: {name}, {moment}", 1e-4)


WORLDS = {
    1: {"expert": [[0]], "batch": [[0]], "replicas": [[0]]},
    2: {"expert": [[0, 1]], "batch": [[0, 1]], "replicas": [[0], [1]]},
    4: {"expert": [[0, 1], [2, 3]], "batch": ALL4, "replicas": [[0, 2], [1, 3]]},
}


@exercise("3.4", "use_experts", points=4)
@pytest.mark.parametrize("ranks", WORLDS)
def test_a_model_has_the_same_weights_on_any_ranks(lab, shared_seed, runs, ranks):
    results = train_on(runs, lab, shared_seed, ranks)
    alone = train_alone(shared_seed, rows=4)
    for rank, result in enumerate(results):
        first = result.value["first"]
        holders = WORLDS[ranks]["expert"]
        share = MODEL_OPTIONS["experts"] // len(holders[0])
        begin = checks.groups_with(rank, holders).index(rank) * share
        own = {str(expert) for expert in range(begin, begin + share)}
        expected = [each for each in alone["first"] if ".experts." not in each or each.split(".")[4] in own]
        assert sorted(first) == sorted(expected), f"rank {rank} of {ranks}: expected {expected}, got {list(first)}"
        for name, weight in first.items():
            assert bool((weight == alone["first"][name]).all()), (
                f"rank {rank} of {ranks}: {name} is drawn by its name in the whole model and the seed alone"
            )
        assert result.value["random"], f"rank {rank} of {ranks}: the global random state was moved"


@exercise("3.4", "use_experts", points=1)
@pytest.mark.parametrize("ranks", [2])
def test_a_model_that_does_not_fit_stays_as_it_was(lab, ranks):
    for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.refused_models, MODEL, MODEL_OPTIONS)):
        for message, untouched in result.value:
            assert message and untouched, f"rank {rank}: a ValueError ({message!r}), before a block is changed"


def train_on(runs: dict, lab, seed: int, ranks: int):
    if ranks not in runs:
        tokens = model_tokens(seed, rows=4)
        runs[ranks] = lab.on_ranks(ranks).run(drivers.train, MODEL, MODEL_OPTIONS, seed, tokens, STEPS, WORLDS[ranks])
    return runs[ranks]


@exercise("3.4", "average_gradients", points=4)
@pytest.mark.parametrize("ranks", WORLDS)
def test_a_model_trains_as_one_process_does(lab, shared_seed, runs, ranks):
    alone = train_alone(shared_seed, rows=4)
    assert_trained_alike(train_on(runs, lab, shared_seed, ranks), alone, WORLDS[ranks], f"{ranks} ranks")


@exercise("3.4", "average_gradients", points=3)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_which_gradients_are_summed_and_divided(lab, ranks):
    world = [list(range(ranks))]
    cases: list[tuple] = [(world, None), (world, world), (world, [[rank] for rank in range(ranks)])]
    if ranks == 4:
        cases += [(ALL4, ACROSS), (ACROSS, [[0], [1], [2], [3]]), (ACROSS, None)]
    results = lab.on_ranks(ranks).run(drivers.average, cases, per_rank=[float(2**rank) for rank in range(ranks)])
    for rank, result in enumerate(results):
        for (batch, replicas), got in zip(cases, result.value, strict=True):
            everyone = checks.groups_with(rank, batch)
            holders = [rank] if replicas is None else checks.groups_with(rank, replicas)
            story = f"rank {rank} of {ranks}, batch groups {batch}, replicas {replicas}"
            for name, gradient in got["gradients"].items():
                group = holders if "experts" in name else everyone
                expected = sum(2**other for other in group) / len(everyone)
                assert bool((gradient == expected).all()), (
                    f"{story}: every rank r has gradients 2^r; that of {name} is summed over {list(group)} and divided "
                    f"by the {len(everyone)} losses: {expected}, got {gradient.flatten()[0].item()}"
                )
            calls = [(call.op, call.payload_bytes, len(call.ranks)) for call in Traffic.from_data(got["traffic"]).calls]
            wanted = [("all_reduce", got["dense_bytes"], len(everyone))] if len(everyone) > 1 else []
            wanted += [("all_reduce", got["bytes"], len(holders))] if len(holders) > 1 else []
            assert sorted(calls) == sorted(wanted), (
                f"{story}: one all-reduce for each kind of parameter, in its own group: {wanted}, got {calls}"
            )


# --- Which ranks belong together --------------------------------------------------------------------------------------


def layout_by_the_book(ranks: int, tensor: int, expert: int, split: bool) -> dict[str, list[list[int]]]:
    """From each rank's coordinates."""
    place = {rank: (0, rank) if split else (rank % tensor, rank // tensor) for rank in range(ranks)}
    keys = {
        "expert": lambda lane, d: (lane, d // expert),
        "batch": lambda lane, d: (lane,),
        "replicas": lambda lane, d: (lane, d % expert),
    }
    found = {}
    for name, key in keys.items():
        groups: dict[tuple, list[int]] = {}
        for rank in range(ranks):
            groups.setdefault(key(*place[rank]), []).append(rank)
        found[name] = [groups[each] for each in sorted(groups)]
    return found


LAYOUTS = [(8, 2, 2, False), (8, 2, 2, True), (8, 2, 4, False), (8, 4, 8, True), (4, 2, 2, False), (4, 2, 4, True)]
LAYOUTS += [(1, 1, 1, False), (6, 1, 3, False), (6, 3, 1, False), (12, 2, 3, False), (16, 4, 2, False), (5, 1, 5, True)]


@exercise("3.4", "expert_layout", points=3)
def test_who_exchanges_tokens_with_whom(lab):
    found = lab.on_ranks(1).run(drivers.layouts, LAYOUTS)[0].value
    for case, got in zip(LAYOUTS, found, strict=True):
        expected = layout_by_the_book(*case)
        for name, groups in expected.items():
            assert got[name] == groups, (
                f"{case[0]} ranks, tensor {case[1]}, expert {case[2]}, split tokens {case[3]}: {name} groups {groups}, "
                f"got {got[name]}. Neighbours of a tensor-parallel group have the same tokens unless they are split"
            )


@exercise("3.4", "expert_layout", points=1)
def test_ranks_that_cannot_be_grouped_are_refused(lab):
    cases = [(8, 3, 1, False), (4, 2, 4, False), (6, 1, 4, True), (4, 0, 1, False), (4, 1, 0, False), (0, 1, 1, False)]
    messages = lab.on_ranks(1).run(drivers.refused_layouts, cases)[0].value
    for case, message in zip(cases, messages, strict=True):
        assert message, f"{case[0]} ranks, tensor {case[1]}, expert {case[2]}, split tokens {case[3]}: a ValueError"


@exercise("3.4", "expert_layout", points=4)
@pytest.mark.parametrize(("tensor", "expert", "split"), [(2, 4, True), (2, 2, False)])
def test_a_layout_beside_tensor_parallelism_trains_as_one_process(lab, shared_seed, tensor, expert, split):
    """4 ranks: neighbours that have the same tokens, or that have split them. Wrong groups, wrong gradients."""
    layout = (4, tensor, expert, split)
    tokens = model_tokens(shared_seed, rows=4)
    results = lab.on_ranks(4).run(drivers.train_in_layout, MODEL, MODEL_OPTIONS, shared_seed, tokens, STEPS, layout)
    groups = layout_by_the_book(*layout)
    assert_trained_alike(
        results, train_alone(shared_seed, rows=4), groups, f"tensor {tensor}, expert {expert}, split {split}"
    )


def test_the_model_of_the_reference_is_the_courses():
    """Not graded: the reference differs from the dense model in its feed-forward networks alone."""
    dense, mixed = build(MODEL, 3), checks.model_with_experts(MODEL, MODEL_OPTIONS, 3)
    assert bool((dense.blocks[1].attention.query.weight == mixed.blocks[1].attention.query.weight).all())
