"""Graded tests of lesson 3.5.

The loss falls in a wrong layout too. So every layout is held to one process on the whole batch: the same loss, the same
gradient of every element, and one norm on all ranks, with unequal numbers of valid targets, tied weights and
accumulation. Each rank has to hold its part and no more. Groups are those of a referee who looks at each rank; plans
are worked out by hand; exports are tried on the frameworks' own classes where those are installed.
"""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import checks_hybrid as checks
import drivers_hybrid as drivers
import pytest
import torch
from checks_hybrid import CONFIG, USUAL, Layout
from torch import Tensor

from shardlab.grade import exercise
from shardlab.models import TransformerConfig

LONG = 150.0  # seconds for eight ranks on a busy machine
TOLERANCE = 1e-5  # relative, of losses and norms
LLAMA = TransformerConfig(128_256, 4_096, 32, 32, kv_heads=8, ffn=14_336, sequence=8_192, tied=False)
SMALL = TransformerConfig(512, 64, 7, 8, kv_heads=2, ffn=160, sequence=48)


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The judge's models are small: more threads than one only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def batch(request) -> tuple[Tensor, Tensor]:
    """The batch that all layouts train on."""
    return checks.make_batch(zlib.crc32(request.config.getoption("seed").encode()))


@pytest.fixture(scope="module")
def runs() -> dict[str, Any]:
    """What several tests look at is run once."""
    return {}


def once(runs: dict[str, Any], key: str, run: Callable[[], Any]) -> Any:
    """The value of ``run()``, or the error it ended with the first time."""
    __tracebackhide__ = True
    if key not in runs:
        try:
            runs[key] = (run(), None)
        except BaseException as error:
            runs[key] = (None, error)
            raise
    value, error = runs[key]
    if error is not None:
        raise error
    return value


def assert_close(got: Tensor, expected: Tensor, what: str, tolerance: float = 1e-5) -> None:
    assert got.shape == expected.shape, f"{what}: expected shape {list(expected.shape)}, got {list(got.shape)}"
    error, largest = (got - expected).abs().max().item(), expected.abs().max().item()
    assert error <= tolerance * max(largest, 0.1), (
        f"{what}: off by {error:.2e}, the largest element is {largest:.2e}\n"
        f"expected {expected.flatten()[:6].tolist()}\ngot      {got.flatten()[:6].tolist()}"
    )


def named(case: dict) -> str:
    """A case as a reader wants to see it."""
    layout = " ".join(f"{name}{size}" for name, size in case["layout"].items())
    extra = ", ".join(f"{name}={value}" for name, value in case.items() if name != "layout")
    return f"layout {layout}" + (f" with {extra}" if extra else "")


# --- The layout -------------------------------------------------------------------------------------------------------

LAYOUTS: list[tuple[Layout, tuple[str, ...]]] = [
    ({"tp": 2, "dp": 4, "ep": 2}, USUAL),
    ({"tp": 2, "cp": 2, "pp": 2, "ep": 2}, USUAL),
    ({"tp": 3, "cp": 2, "dp": 5, "pp": 2, "ep": 5}, USUAL),
    ({"dp": 6, "pp": 3, "ep": 3}, ("pp", "tp", "dp", "cp")),
    ({"tp": 2, "cp": 3, "dp": 2, "pp": 2, "ep": 2}, ("dp", "pp", "tp", "cp")),
    ({}, USUAL),
]


@exercise("3.5", "ParallelLayout.coordinates", points=3)
@pytest.mark.parametrize("order", ["usual", "another"])
def test_coordinates(lab, runs, order):
    found = once(runs, "coordinates", lambda: lab.on_ranks(1).run(drivers.coordinates_of, LAYOUTS)[0].value)
    cases = [case for case in zip(LAYOUTS, found, strict=True) if (case[0][1] == USUAL) == (order == "usual")]
    for (layout, order), got in cases:
        for rank, where in enumerate(got):
            expected = checks.place(layout, rank, order)
            del expected["block"]
            assert where == expected, (
                f"layout {layout}, order {order} (innermost first): rank {rank} is at {expected}, got {where}. "
                "ep counts the ranks of the data group, modulo ep"
            )


@exercise("3.5", "ParallelLayout.rank_at", points=2)
def test_rank_at(lab):
    cases, expected = [], []
    for layout, order in LAYOUTS:
        places = [
            {name: checks.place(layout, rank, order)[name] for name in USUAL} for rank in range(checks.ranks_of(layout))
        ]
        cases.append((layout, order, places))
        expected.append(list(range(checks.ranks_of(layout))))
    cases.append(({"tp": 2, "cp": 2, "pp": 2}, USUAL, [{"cp": 1, "pp": 1}, {}, {"tp": 1}]))
    expected.append([6, 0, 1])
    got = lab.on_ranks(1).run(drivers.ranks_at, cases)[0].value
    for (layout, order, places), ranks, right in zip(cases, got, expected, strict=True):
        assert ranks == right, f"layout {layout}, order {order}: at {places} are ranks {right}, got {ranks}"


@exercise("3.5", "ParallelLayout.coordinates", points=1)
def test_no_coordinates_outside(lab):
    calls = [("coordinates", (8,), {}), ("coordinates", (-1,), {})]
    for call, message in zip(
        calls, lab.on_ranks(1).run(drivers.layout_errors, {"tp": 2, "dp": 4}, calls)[0].value, strict=True
    ):
        assert message, f"8 ranks: {call[0]}{call[1]} must raise a ValueError"


@exercise("3.5", "ParallelLayout.rank_at", points=1)
def test_no_rank_outside(lab):
    calls = [
        ("rank_at", (), {"tp": 2}),
        ("rank_at", (), {"dp": -1}),
        ("rank_at", (), {"ep": 0}),
        ("rank_at", (), {"cp": 1}),
    ]
    for call, message in zip(
        calls, lab.on_ranks(1).run(drivers.layout_errors, {"tp": 2, "dp": 4}, calls)[0].value, strict=True
    ):
        assert message, f"tp 2, dp 4: rank_at(**{call[2]}) must raise a ValueError"


@exercise("3.5", "ParallelLayout.groups", points=5)
@pytest.mark.parametrize("names", ["tp cp dp pp", "data", "ep expert_data"])
def test_groups(lab, runs, names):
    everything = list(checks.SAME)
    found = once(runs, "groups", lambda: lab.on_ranks(1).run(drivers.groups_of, LAYOUTS, everything)[0].value)
    for (layout, order), got in zip(LAYOUTS, found, strict=True):
        for name in names.split():
            expected = checks.groups(layout, name, order)
            assert got[name] == expected, (
                f'layout {layout}, order {order} (innermost first), groups of "{name}":\nexpected {expected}\n'
                f"got      {got[name]}\nMembers have in common: {', '.join(checks.SAME[name])} (block: which run of ep "
                "ranks of the data group)"
            )


@exercise("3.5", "ParallelLayout.make_groups", points=3)
def test_process_groups(lab):
    layouts = [{"tp": 2, "dp": 2, "ep": 2}, {"tp": 2, "pp": 2}, {"cp": 2, "dp": 2, "ep": 2}]
    results = lab.on_ranks(4).run(drivers.made_groups, layouts, 47.0)
    for number, layout in enumerate(layouts):
        for rank, result in enumerate(results):
            got = result.value[number]
            for name in checks.SAME:
                expected = next(each for each in checks.groups(layout, name) if rank in each)
                assert got["members"].get(name) == expected, (
                    f'layout {layout}, rank {rank}: process group "{name}" has ranks {got["members"].get(name)}, '
                    f"expected {expected}"
                )
                assert got["sums"][name] == sum(expected), f"a sum over {name} of {layout}: {got['sums'][name]}"
            assert got["timeouts"], "every call of new_group needs timeout=timeout: without it waiting takes 30 minutes"


@exercise("3.5", "ParallelLayout.make_groups", points=1)
def test_no_groups_for_another_world(lab):
    results = lab.on_ranks(2).run(drivers.wrong_world, {"tp": 2, "dp": 2})
    for rank, result in enumerate(results):
        assert result.value, f"rank {rank}: a layout for 4 ranks in a world of 2 must raise a ValueError"
        assert not result.traffic.calls, "before any communication"


# --- Topology ---------------------------------------------------------------------------------------------------------


def best_placement(layout: Layout, per_node: int, traffic: dict[str, float], inside: float, between: float) -> float:
    """Cost of the cheapest order."""
    found = []
    for order in itertools.permutations(USUAL):
        nodes = {
            name: max(len({rank // per_node for rank in group}) for group in checks.groups(layout, name, order))
            for name in traffic
        }
        found.append(sum(traffic[name] / (inside if nodes[name] == 1 else between) for name in traffic))
    return min(found)


@exercise("3.5", "place_on_topology", points=5)
@pytest.mark.parametrize("heaviest", ["tp", "data", "pp"])
def test_what_sends_most_stays_inside_a_node(lab, heaviest):
    cases = []
    for layout, per_node in [
        ({"tp": 4, "dp": 2, "pp": 2}, 4),
        ({"tp": 2, "dp": 4, "pp": 2}, 8),
        ({"tp": 2, "cp": 2, "dp": 2, "pp": 3}, 6),
        ({"tp": 3, "dp": 3, "pp": 2}, 4),
    ]:
        traffic = {"tp": 2e9, "data": 1e9, "pp": 5e8, "cp": 1e8} | {heaviest: 9e10}
        cases.append((layout, checks.ranks_of(layout), per_node, traffic, 4e11, 5e10))
    for (layout, _, per_node, traffic, inside, between), got in zip(
        cases, lab.on_ranks(1).run(drivers.placements, cases)[0].value, strict=True
    ):
        what = f"{layout} on nodes of {per_node}, bytes {traffic}, {inside:.0e} and {between:.0e} bytes/s"
        cost = best_placement(layout, per_node, traffic, inside, between)
        total = sum(got["seconds"].values())
        assert total == pytest.approx(cost), f"{what}: the cheapest order costs {cost:.4f} s, {got} costs {total:.4f} s"
        spans = {
            name: max(len({rank // per_node for rank in group}) for group in checks.groups(layout, name, got["order"]))
            for name in traffic
        }
        assert got["nodes"] == spans, (
            f"{what}: in the order {got['order']} groups span {spans} nodes, got {got['nodes']}"
        )
        if heaviest == "tp" and layout.get("tp", 1) <= per_node and per_node % layout["tp"] == 0:
            assert got["nodes"]["tp"] == 1, f"{what}: tp fits into a node and must not leave it"


@exercise("3.5", "place_on_topology", points=1)
def test_the_usual_order_among_equals(lab):
    cases = [({"tp": 2, "dp": 2, "pp": 2}, 8, 8, {"tp": 1e9, "data": 1e9, "pp": 1e9}, 4e11, 5e10)]
    (got,) = lab.on_ranks(1).run(drivers.placements, cases)[0].value
    assert tuple(got["order"]) == USUAL, f"on one node all orders cost the same: expected {USUAL}, got {got['order']}"


@exercise("3.5", "place_on_topology", points=1)
def test_no_place_on_another_cluster(lab):
    assert lab.on_ranks(1).run(drivers.placement_error)[0].value, "8 ranks, 16 GPUs: expected a ValueError"


# --- The trainer: what a rank holds -----------------------------------------------------------------------------------

HOLDERS = [
    {"layout": {"tp": 2, "pp": 2}, "micro_batches": 2},
    {"layout": {"tp": 4}},
    {"layout": {"tp": 2, "cp": 2}, "tied": False},
    {"layout": {"tp": 2, "dp": 2, "ep": 2}, "experts": True},
]


def held_by(lab, runs: dict, number: int) -> list[dict]:
    results = once(runs, "held", lambda: lab.on_ranks(4, LONG).run(drivers.held_parameters, HOLDERS))
    return [result.value[number] for result in results]


@exercise("3.5", "HybridTrainer.build_stage", points=6)
@pytest.mark.parametrize("number", range(len(HOLDERS)), ids=[named(case) for case in HOLDERS])
def test_every_rank_holds_its_part(lab, runs, number):
    case = HOLDERS[number]
    layout, tied = case["layout"], case.get("tied", True)
    whole = dict(checks.whole_model(tied, case.get("experts", False)).named_parameters())
    seen: dict[int, set[str]] = {}
    for rank, got in enumerate(held_by(lab, runs, number)):
        where, what = checks.place(layout, rank), f"{named(case)}, rank {rank}"
        for name, value in got["values"].items():
            full = whole["embedding.weight" if name == "head.weight" and tied else name]
            expected = checks.part_of(full, name, layout.get("tp", 1), where["tp"])
            assert_close(
                value, expected, f"{what}, {name}: its part of the whole, which on every layout is the same", 0
            )
        numel = sum(value.numel() for value in got["values"].values())
        assert got["numel"] == numel, f"{what}: {got['numel']} elements, in parameters with names of the model {numel}"
        seen.setdefault(where["pp"], set()).update(got["values"])
        own = {name.split(".experts.")[1].split(".")[0] for name in got["values"] if ".experts." in name}
        if case.get("experts"):
            share = checks.EXPERTS // layout["ep"]
            right = {str(each) for each in range(where["ep"] * share, (where["ep"] + 1) * share)}
            assert own == right, (
                f"{what} has the ep coordinate {where['ep']}: experts {sorted(right)}, got {sorted(own)}"
            )
    stages = list(seen.values())
    missing = set(whole) - set().union(*stages)
    assert not missing, f"{named(case)}: no rank holds {sorted(missing)}"
    for left, right in itertools.pairwise(stages):
        assert not left & right, f"{named(case)}: two stages hold {sorted(left & right)}: then nothing is saved"


@exercise("3.5", "HybridTrainer.build_stage", points=2)
def test_parts_of_a_sequence_know_where_they_stand(lab, runs):
    for rank, got in enumerate(held_by(lab, runs, 2)):
        part = checks.place(HOLDERS[2]["layout"], rank)["cp"]
        expected = [0, 1, 6, 7] if part == 0 else [2, 3, 4, 5]
        assert got["positions"].flatten().tolist() == expected, (
            f"cp 2, rank {rank} with part {part} of a sequence of 8: its 4 tokens stand at {expected}, attention was "
            f"told {got['positions'].flatten().tolist()}"
        )


def test_no_trainer_for_what_cannot_be_cut(lab):
    """Given code."""
    cases = [
        {"layout": {"dp": 2}, "zero": 2},
        {"layout": {"dp": 4}},
        {"layout": {"tp": 2}, "config": replace(CONFIG, ffn=25)},
        {"layout": {"pp": 2}, "micro_batches": 0},
        {"layout": {"dp": 2, "ep": 2}},
        {"layout": {"dp": 2}, "experts": True, "coefficient": 0.1},
    ]
    for rank, result in enumerate(lab.on_ranks(2).run(drivers.trainer_errors, cases)):
        for case, message in zip(cases, result.value, strict=True):
            assert message, f"rank {rank} of 2: {named(case)} must raise a ValueError"
        assert not result.traffic.calls, "before any communication"


SORTED = [
    {"layout": {"tp": 2, "pp": 2}, "micro_batches": 2},
    {"layout": {"tp": 4}},
    {"layout": {"tp": 2, "cp": 2}, "tied": False},
    {"layout": {"pp": 2, "dp": 2}, "tied": False, "micro_batches": 2},
    {"layout": {"tp": 2, "dp": 2, "ep": 2}, "experts": True},
    {"layout": {"dp": 4, "ep": 2}, "experts": True},
]


@exercise("3.5", "HybridTrainer.sort_parameters", points=6)
@pytest.mark.parametrize("number", range(len(SORTED)), ids=[named(case) for case in SORTED])
def test_how_many_ranks_hold_the_same(lab, runs, number):
    results = once(runs, "copies", lambda: lab.on_ranks(4, LONG).run(drivers.copies_of, SORTED))
    case = SORTED[number]
    layout, tied = case["layout"], case.get("tied", True)
    found = [result.value[number] for result in results]
    for rank, own in enumerate(found):
        for name, (copies, members) in own.items():
            expert, ends = (
                "experts" in name,
                tied and layout.get("pp", 1) > 1 and name in ("embedding.weight", "head.weight"),
            )
            of_data = 4 // layout.get("tp", 1) // layout.get("pp", 1) // (layout.get("ep", 1) if expert else 1)
            expected = of_data * checks.replicas_of(name, layout.get("tp", 1)) * (2 if ends else 1)
            assert copies == expected, (
                f"{named(case)}, rank {rank}: the same elements of {name} are on {expected} of 4 ranks, got {copies}"
            )
            group = next(g for g in checks.groups(layout, "expert_data" if expert else "data") if rank in g)
            assert list(members) == group, (
                f"{named(case)}, {name}: averaged over ranks {list(members)}, expected {group}"
            )


# --- The trainer: a batch ---------------------------------------------------------------------------------------------


def weights_of(targets: list[Tensor], total: int, ranks: int) -> list[float]:
    return [ranks * int((part != -100).sum()) / total for part in targets]


@exercise("3.5", "HybridTrainer.local_micro_batches", points=5)
@pytest.mark.parametrize("number", range(4), ids=["dp4", "cp2 dp2", "cp4", "tp2 dp2"])
def test_micro_batches(lab, runs, batch, number):
    seed = int(batch[0].sum())
    cases = [
        ({"dp": 4}, 1, *checks.make_batch(seed, rows=7)),
        ({"cp": 2, "dp": 2}, 2, *checks.make_batch(seed + 1, rows=6)),
        ({"cp": 4}, 3, *checks.make_batch(seed + 2, rows=5)),
        ({"tp": 2, "dp": 2}, 2, *checks.make_batch(seed + 3, rows=6, tokens=7)),
    ]
    results = once(runs, "micro-batches", lambda: lab.on_ranks(4, LONG).run(drivers.micro_batches_of, cases))
    layout, count, inputs, targets = cases[number]
    cp, dp = layout.get("cp", 1), layout.get("dp", 1)
    total = int((targets != -100).sum())
    for rank, result in enumerate(results):
        where, what = checks.place(layout, rank), f"{layout}, {count} micro-batches, rank {rank}"
        rows_in, rows_out = (each.tensor_split(dp)[where["dp"]] for each in (inputs, targets))
        if cp > 1:
            chunks = inputs.shape[1] // (2 * cp)
            first, second = (
                range(part * chunks, (part + 1) * chunks) for part in (where["cp"], 2 * cp - 1 - where["cp"])
            )
            rows_in, rows_out = (each[:, [*first, *second]] for each in (rows_in, rows_out))
        got = result.value[number]
        assert len(got) == count, f"{what}: got {len(got)}"
        for place, whole, name in ((0, rows_in, "inputs"), (1, rows_out, "targets")):
            for part, right in zip(got, whole.tensor_split(count), strict=True):
                assert torch.equal(part[place], right), (
                    f"{what}: {name} are {right.tolist()}, got {part[place].tolist()}. Rows of the replica, and of "
                    "each sequence the zig-zag part of the cp rank"
                )
        expected = weights_of(list(rows_out.tensor_split(count)), total, cp * dp)
        weights = [part[2] for part in got]
        assert weights == pytest.approx(expected), (
            f"{what}: weights {weights}, expected {expected}: valid targets of the micro-batch, by those of the whole "
            f"batch ({total}), times the {cp * dp} ranks over which gradients are averaged"
        )


@exercise("3.5", "HybridTrainer.local_micro_batches", points=1)
def test_no_micro_batches_of_nothing(lab):
    x = torch.ones(4, 8, dtype=torch.int64)
    cases = [(3, x, x), (1, x, x[:, :4]), (1, x, torch.full_like(x, -100)), (1, x[0], x[0])]
    results = lab.on_ranks(2).run(drivers.micro_batch_errors, {"dp": 2}, cases)
    for rank, result in enumerate(results):
        whats = ["3 micro-batches of 2 rows", "targets of another shape", "no valid target", "one dimension"]
        for what, message in zip(whats, result.value, strict=True):
            assert message, f"rank {rank}: {what} must raise a ValueError"


# --- The trainer: gradients -------------------------------------------------------------------------------------------


@exercise("3.5", "HybridTrainer.settle_gradients", points=3)
def test_gradients_of_experts(lab):
    case = {"layout": {"tp": 2, "dp": 2, "ep": 2}, "experts": True}
    for rank, result in enumerate(lab.on_ranks(4, LONG).run(drivers.settled, case)):
        for name, value in result.value.items():
            expected = 0.5 if ".experts." in name else 1.0
            assert value == expected, (
                f"{named(case)}, rank {rank}: a gradient of 1 in {name} should be {expected} afterwards, got {value}. "
                "An expert has the tokens of 2 ranks, every other parameter those of one"
            )


NORMS = [
    {"layout": {"tp": 2, "dp": 2}},
    {"layout": {"tp": 2, "pp": 2}, "micro_batches": 2},
    {"layout": {"tp": 4}, "tied": False},
    {"layout": {"tp": 2, "dp": 2, "ep": 2}, "experts": True},
]


@exercise("3.5", "HybridTrainer.gradient_norm", points=4)
@pytest.mark.parametrize("number", range(len(NORMS)), ids=[named(case) for case in NORMS])
def test_norm_of_known_gradients(lab, runs, batch, number):
    seed = int(batch[0].sum())
    results = once(runs, "norms", lambda: lab.on_ranks(4, LONG).run(drivers.norms_of, NORMS, seed))
    case = NORMS[number]
    whole = dict(checks.whole_model(case.get("tied", True), case.get("experts", False)).named_parameters())
    expected = math.sqrt(sum(checks.numbered(seed, name).double().square().sum().item() for name in whole))
    for rank, result in enumerate(results):
        norm, calls, numel = result.value[number]
        assert norm == pytest.approx(expected, rel=TOLERANCE), (
            f"{named(case)}, rank {rank}: the norm of the whole gradient is {expected:.5f}, got {norm:.5f} "
            f"({norm / expected:.4f}x). Every element of the model counts once, whoever holds it"
        )
        assert calls == 1 and numel <= 2, f"one all-reduce of one number is enough: {calls} calls of up to {numel}"


# --- The trainer: steps -----------------------------------------------------------------------------------------------


def assert_trained(results: list, number: int, case: dict, alone: checks.Alone) -> None:
    """Losses and parameters of every rank are those of one process."""
    layout, tied = case["layout"], case.get("tied", True)
    for rank, result in enumerate(results):
        got, what = result.value[number], f"{named(case)}, rank {rank}"
        assert got["losses"] == pytest.approx(alone.losses, rel=TOLERANCE), (
            f"{what}: losses {got['losses']}, one process on the whole batch has {alone.losses}"
        )
        tp_rank = checks.place(layout, rank)["tp"]
        for name, value in got["parameters"].items():
            full = alone.parameters["embedding.weight" if name == "head.weight" and tied else name]
            expected = checks.part_of(full, name, layout.get("tp", 1), tp_rank)
            assert_close(value, expected, f"{what}, {name} after {len(alone.losses)} steps of SGD", 3e-5)


STEPS = [
    {"layout": {"tp": 2, "dp": 2}},
    {"layout": {"pp": 2, "dp": 2}, "micro_batches": 3},
    {"layout": {"pp": 2, "tp": 2}, "micro_batches": 2, "zero": 1, "max_norm": 0.3},
    {"layout": {"cp": 2, "dp": 2}, "micro_batches": 2, "tied": False, "max_norm": 0.3},
    {"layout": {"tp": 2, "dp": 2, "ep": 2}, "experts": True, "zero": 1, "micro_batches": 2},
]


@exercise("3.5", "HybridTrainer.step", points=8)
@pytest.mark.parametrize("number", range(len(STEPS)), ids=[named(case) for case in STEPS])
def test_trains_as_one_process(lab, runs, batch, number):
    results = once(runs, "steps", lambda: lab.on_ranks(4, LONG).run(drivers.trained, STEPS, batch, 2))
    case = STEPS[number]
    model = {name: case[name] for name in ("tied", "experts") if name in case}
    assert_trained(results, number, case, checks.train_alone(batch, 2, case.get("max_norm"), **model))


EIGHT = [
    {"layout": {"dp": 8}},
    {"layout": {"tp": 2, "dp": 4}},
    {"layout": {"tp": 4, "dp": 2}, "micro_batches": 2},
    {"layout": {"pp": 2, "tp": 2, "dp": 2}, "micro_batches": 3},
    {"layout": {"cp": 2, "dp": 2, "pp": 2}, "micro_batches": 2},
    {"layout": {"pp": 4, "cp": 2}, "micro_batches": 4},
    {"layout": {"tp": 2, "cp": 4}},
    {"layout": {"tp": 2, "cp": 2, "pp": 2}, "micro_batches": 2, "zero": 1},
    {"layout": {"cp": 2, "dp": 2, "pp": 2, "ep": 4}, "experts": True, "micro_batches": 2},
]


def eight(lab, runs: dict, batch: tuple[Tensor, Tensor]) -> list:
    return once(runs, "eight", lambda: lab.on_ranks(8, LONG).run(drivers.trained, EIGHT, batch, 1))


@exercise("3.5", "HybridTrainer.step", points=5)
@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_eight_ranks_train_alike_in_every_layout(lab, runs, batch, experts):
    results = eight(lab, runs, batch)
    alone = checks.train_alone(batch, 1, experts=experts)
    for number, case in enumerate(EIGHT):
        if case.get("experts", False) == experts:
            assert_trained(results, number, case, alone)


@exercise("3.5", "HybridTrainer.gradient_norm", points=4)
@pytest.mark.parametrize("experts", [False, True], ids=["dense", "experts"])
def test_one_norm_in_every_layout(lab, runs, batch, experts):
    results = eight(lab, runs, batch)
    (expected,) = checks.train_alone(batch, 1, experts=experts).norms
    for number, case in enumerate(EIGHT):
        if case.get("experts", False) == experts:
            for rank, result in enumerate(results):
                (norm,) = result.value[number]["norms"]
                assert norm == pytest.approx(expected, rel=TOLERANCE), (
                    f"{named(case)}, rank {rank}: gradient norm {norm:.6f}, one process has {expected:.6f}"
                )


@exercise("3.5", "HybridTrainer.step", points=3)
def test_bytes_shrink(lab, batch):
    cases = [
        {"layout": {"dp": 4}},
        {"layout": {"dp": 4}, "zero": 1},
        {"layout": {"tp": 2, "pp": 2}, "micro_batches": 2},
    ]
    results = lab.on_ranks(4, LONG).run(drivers.bytes_after_a_step, cases, batch)
    whole = 4 * CONFIG.parameters
    for rank, result in enumerate(results):
        (plain, own), (sharded, _), (split, part) = result.value
        assert own == whole, f"rank {rank}, dp4: {own} bytes of parameters, the model has {whole}"
        # parameters, AdamW's two states, and where DataParallel keeps gradients; some small tensors beside
        assert plain <= 4.2 * whole, f"rank {rank}, dp4: {plain} bytes after a step, expected about {4 * whole}"
        assert sharded <= 1.7 * whole, (
            f"rank {rank}, dp4 with zero=1: {sharded} bytes alive after a step. Parameters are {whole}, and the two "
            f"states of a quarter of them {whole // 2}"
        )
        assert part <= 0.45 * whole, (
            f"rank {rank}, tp2 pp2: {part} bytes of parameters, a quarter of {whole} and at one end half of a tied "
            "embedding more"
        )
        assert split <= 3.4 * part, (
            f"rank {rank}, tp2 pp2: {split} bytes alive after a step, three times {part} are due"
        )


# --- Plans ------------------------------------------------------------------------------------------------------------

PLANS = [  # config, layout, batch, ZeRO stage, recomputation
    (LLAMA, {"tp": 8, "pp": 4, "dp": 2}, 64, 1, "selective"),
    (LLAMA, {"dp": 8}, 64, 3, "full"),
    (LLAMA, {"tp": 4, "cp": 2, "dp": 4}, 16, 2, "selective"),
    (SMALL, {"pp": 3, "tp": 2, "dp": 2}, 8, 0, "full"),
    (SMALL, {"pp": 3, "cp": 3, "dp": 2}, 4, 1, "selective"),
]


@exercise("3.5", "stage_memory", points=4)
@pytest.mark.parametrize("kind", ["parameters", "gradients", "optimizer", "activations"])
def test_memory_of_a_stage(lab, runs, kind):
    cases = [(plan, stage) for plan in PLANS for stage in range(plan[1].get("pp", 1))]
    asked = [plan for plan, _ in cases], [stage for _, stage in cases]
    found = once(runs, "memory", lambda: lab.on_ranks(1).run(drivers.memory_of, *asked)[0].value)
    for (plan, stage), got in zip(cases, found, strict=True):
        expected = checks.memory(*plan, stage)[kind]
        assert got[kind] == pytest.approx(expected, rel=1e-4), (
            f"layout {plan[1]}, batch {plan[2]}, ZeRO-{plan[3]}, {plan[4]}, stage {stage}: {kind} of {expected:,} "
            f"bytes, got {got[kind]:,.0f}"
        )


@exercise("3.5", "plan_traffic", points=4)
@pytest.mark.parametrize("name", ["tp", "cp", "pp", "data"])
def test_traffic_of_a_plan(lab, runs, name):
    found = once(runs, "traffic", lambda: lab.on_ranks(1).run(drivers.traffic_of, PLANS)[0].value)
    for plan, got in zip(PLANS, found, strict=True):
        expected = checks.traffic(*plan)[name]
        assert got[name] == pytest.approx(expected, rel=1e-4), (
            f"layout {plan[1]}, batch {plan[2]}, ZeRO-{plan[3]}, {plan[4]}: a rank sends {expected:,.0f} bytes in its "
            f"{name} group per step, got {got[name]:,.0f}"
        )


@exercise("3.5", "plan_seconds", points=3)
def test_seconds_of_a_step(lab):
    times = [
        {"tp": 0.5, "cp": 0.0, "pp": 0.1, "data": 0.2},
        {"tp": 0.0, "cp": 0.0, "pp": 0.0, "data": 90.0},
        {"tp": 0.2, "cp": 30.0, "pp": 0.0, "data": 0.1},
        {"tp": 0.01, "cp": 0.0, "pp": 0.02, "data": 1.0},
        {"tp": 0.0, "cp": 0.2, "pp": 0.1, "data": 0.0},
    ]
    found = lab.on_ranks(1).run(drivers.seconds_of, PLANS, times, 1e15)[0].value
    for (config, layout, batch_size, _, recompute), each, got in zip(PLANS, times, found, strict=True):
        expected = checks.seconds(config, layout, batch_size, recompute, 1e15, each)
        assert got == pytest.approx(expected, rel=1e-4), (
            f"layout {layout}, batch {batch_size}, {recompute}, messages {each} s: expected {expected:.4f} s, got "
            f"{got:.4f}"
        )


@exercise("3.5", "why_not", points=5)
def test_reasons(lab):
    cases = [
        ((LLAMA, {"tp": 8, "pp": 4, "dp": 2}, 64, 1, "selective"), ""),
        ((SMALL, {"tp": 3}, 8, 0, "full"), "vocab"),
        ((LLAMA, {"tp": 16}, 8, 0, "full"), "tp 16"),
        ((SMALL, {"pp": 8}, 64, 0, "full"), "8 stages"),
        ((SMALL, {"cp": 5}, 8, 0, "full"), "sequence"),
        ((SMALL, {"dp": 3}, 8, 0, "full"), "8 sequences"),
        ((SMALL, {"pp": 4, "dp": 4}, 8, 0, "full"), "2 micro-batches"),
        ((SMALL, {"pp": 2}, 8, 2, "full"), "ZeRO-2"),
        ((LLAMA, {"dp": 8}, 64, 0, "full"), "GiB"),
    ]
    found = lab.on_ranks(1).run(drivers.reasons, [case for case, _ in cases], 8, 80.0)[0].value
    for (plan, mention), got in zip(cases, found, strict=True):
        what = f"layout {plan[1]}, batch {plan[2]}, ZeRO-{plan[3]}, {plan[4]}, nodes of 8 GPUs of 80 GiB"
        if not mention:
            assert got == "", f"{what}: nothing speaks against it, got {got!r}"
        else:
            assert mention in got, f"{what}: expected a sentence with {mention!r}, got {got!r}"
    total = sum(checks.memory(*cases[-1][0], 0).values())
    needed, there = f"{total / 2**30:,.1f} GiB", f"{0.9 * 80:,.1f} GiB"
    assert needed in found[-1] and there in found[-1], (
        f"say what is needed and what is there: {needed}, {there}: {found[-1]!r}"
    )


def fits(plan: dict, config: TransformerConfig, memory_gib: float) -> bool:
    layout, pp = plan["layout"], plan["layout"]["pp"]
    most = max(
        sum(checks.memory(config, layout, plan["batch"], plan["zero"], plan["recompute"], stage).values())
        for stage in (0, pp - 1)
    )
    return most <= int(0.9 * memory_gib * 2**30)


CLUSTERS = [  # config, GPUs, GPUs per node, GiB, batch
    (LLAMA, 16, 8, 80.0, 64),
    (LLAMA, 16, 4, 24.0, 32),
    (SMALL, 12, 4, 0.004, 24),
]


@exercise("3.5", "search", points=6)
@pytest.mark.parametrize("number", range(len(CLUSTERS)), ids=["16 x 80 GiB", "16 x 24 GiB", "12 tiny"])
def test_search(lab, number):
    config, gpus, per_node, memory_gib, batch_size = CLUSTERS[number]
    result = lab.on_ranks(1).run(drivers.searched, *CLUSTERS[number])[0].value
    plans, rejected = result["plans"], result["rejected"]
    for plan in plans:
        assert fits(plan, config, memory_gib), f"this plan does not fit into {memory_gib} GiB: {plan}"
        assert plan["layout"]["tp"] <= per_node, f"tp leaves the node of {per_node} GPUs: {plan}"
        assert checks.ranks_of(plan["layout"]) == gpus and plan["batch"] == batch_size
    assert [plan["seconds"] for plan in plans] == sorted(plan["seconds"] for plan in plans), "fastest first"
    tried = {key(each) for each in [*plans, *rejected]}
    shapes = {
        (tp, pp, cp)
        for tp in range(1, gpus + 1)
        for pp in range(1, gpus + 1)
        for cp in range(1, gpus + 1)
        if gpus % (tp * pp * cp) == 0
    }
    assert {each[:3] for each in tried} == shapes, "every tp x pp x cp that divides the GPUs is a plan or is rejected"
    accepted = {key(plan) for plan in plans}
    for tp, pp, cp in shapes:
        layout = {"tp": tp, "pp": pp, "cp": cp, "dp": gpus // (tp * pp * cp)}
        for zero in range(4):
            for recompute in ("selective", "full"):
                plan = {"layout": layout, "batch": batch_size, "zero": zero, "recompute": recompute}
                right = possible(config, layout, per_node, batch_size, zero) and fits(plan, config, memory_gib)
                assert right == (key(plan) in accepted), (
                    f"{plan} {'fits and is missing' if right else 'is no plan that can be used'}"
                )
    assert all(each["reason"] for each in rejected), "say why"
    assert len({(key(each)[:3], each["reason"]) for each in rejected}) == len(rejected), (
        "one for each layout and reason"
    )
    for plan in plans[:5]:
        sent = checks.traffic(config, plan["layout"], batch_size, plan["zero"], plan["recompute"])
        times = {}
        for name, amount in sent.items():
            spread = max(len({rank // per_node for rank in group}) for group in checks.groups(plan["layout"], name))
            times[name] = amount / (450e9 if spread == 1 else 50e9)
        expected = checks.seconds(config, plan["layout"], batch_size, plan["recompute"], 1e15, times)
        assert plan["seconds"] == pytest.approx(expected, rel=1e-3), (
            f"{plan}: {expected:.4f} s on 450 and 50 GB/s, ranks numbered tp, cp, dp, pp"
        )


def key(plan: dict) -> tuple:
    layout = plan["layout"]
    return layout["tp"], layout["pp"], layout["cp"], plan["zero"], plan["recompute"]


def possible(config: TransformerConfig, layout: Layout, per_node: int, batch_size: int, zero: int) -> bool:
    """Without a look at memory."""
    tp, pp, cp, dp = (layout[name] for name in ("tp", "pp", "cp", "dp"))
    heads = config.heads % tp == 0 and (config.kv_heads % tp == 0 or tp % config.kv_heads == 0)
    widths = config.vocab % tp == 0 and config.ffn % tp == 0
    rows = batch_size % dp == 0 and batch_size // dp >= pp
    return (
        heads
        and widths
        and tp <= per_node
        and pp <= config.layers
        and config.sequence % (2 * cp) == 0
        and rows
        and not (zero > 1 and pp > 1)
    )


@exercise("3.5", "search", points=1)
def test_nothing_fits_and_no_batch(lab):
    result = lab.on_ranks(1).run(drivers.searched, LLAMA, 2, 8, 16.0, 8)[0].value
    assert result["plans"] == [], "8 billion parameters fit on no 2 GPUs of 16 GiB"
    assert any("GiB" in each["reason"] for each in result["rejected"])
    assert lab.on_ranks(1).run(drivers.search_error, SMALL)[0].value, "a batch of 0 must raise a ValueError"


# --- Exports ----------------------------------------------------------------------------------------------------------

EXPORTS: list[tuple[tuple, dict]] = [
    ((LLAMA, {"tp": 8, "pp": 4, "dp": 2}, 64, 1, "selective"), {}),
    ((LLAMA, {"dp": 16}, 64, 3, "full"), {}),
    ((LLAMA, {"tp": 2, "cp": 2, "dp": 2}, 16, 0, "selective"), {}),
    ((SMALL, {"tp": 2, "dp": 4, "ep": 2}, 16, 1, "full"), {}),
]
SWAPPED = ((SMALL, {"tp": 2, "dp": 2, "pp": 2}, 16, 1, "selective"), {"order": ("tp", "cp", "pp", "dp")})
STRANGE = ((SMALL, {"tp": 2, "dp": 2, "pp": 2}, 16, 1, "selective"), {"order": ("dp", "tp", "cp", "pp")})


def unpack(case: tuple[tuple, dict]) -> tuple:
    (config, layout, batch_size, zero, recompute), _ = case
    sizes = {name: layout.get(name, 1) for name in ("tp", "pp", "cp", "dp", "ep")}
    return config, sizes, batch_size, zero, recompute


@exercise("3.5", "torchtitan_config", points=4)
def test_torchtitan(lab):
    found = lab.on_ranks(1).run(drivers.exported, "torchtitan_config", [*EXPORTS, SWAPPED, STRANGE])[0].value
    for case, got in zip(EXPORTS, found, strict=False):
        config, sizes, batch_size, zero, recompute = unpack(case)
        m = batch_size // sizes["dp"]
        expected = {
            "training": {
                "seq_len": config.sequence,
                "global_batch_size": batch_size,
                "local_batch_size": m if sizes["pp"] > 1 else 1,
            },
            "parallelism": {
                "data_parallel_replicate_degree": sizes["dp"] if zero == 0 else 1,
                "data_parallel_shard_degree": 1 if zero == 0 else sizes["dp"],
                "fsdp_reshard_after_forward": "always" if zero == 3 else "never",
                "tensor_parallel_degree": sizes["tp"],
                "pipeline_parallel_degree": sizes["pp"],
                "pipeline_parallel_schedule": "1F1B",
                "pipeline_parallel_microbatch_size": 1,
                "context_parallel_degree": sizes["cp"],
                "expert_parallel_degree": sizes["ep"],
            },
            "activation_checkpoint": {"policy": "FullAC" if recompute == "full" else None},
        }
        assert got == expected, f"plan {case[0][1:]}:\nexpected {expected}\ngot      {got}"
    for case, got in zip([SWAPPED, STRANGE], found[-2:], strict=True):
        assert isinstance(got, str), f"TorchTitan numbers ranks tp, cp, dp, pp: {case[1]['order']} must be refused"


@exercise("3.5", "torchtitan_config", points=1)
def test_torchtitan_shares_experts_among_ranks_that_shard(lab):
    case = ((SMALL, {"dp": 4, "ep": 2}, 16, 0, "selective"), {})
    (got,) = lab.on_ranks(1).run(drivers.exported, "torchtitan_config", [case])[0].value
    assert isinstance(got, str), "ep with ZeRO-0 must be refused"


SWITCHES = {
    "group-query-attention", "swiglu", "disable-bias-linear", "bf16", "calculate-per-token-loss", "sequence-parallel",
    "use-tp-pp-dp-mapping", "untie-embeddings-and-output-weights", "use-distributed-optimizer", "use-megatron-fsdp",
}  # fmt: skip


def parse(words: list[str]) -> dict[str, str | bool]:
    """Options of a command line; a switch is True."""
    found, waiting = {}, list(words)
    assert all(isinstance(word, str) for word in words), f"a command line is made of strings: {words}"
    while waiting:
        name = waiting.pop(0).removeprefix("--")
        found[name] = True if name in SWITCHES else waiting.pop(0)
    return found


def megatron_options(case: tuple[tuple, dict]) -> dict[str, str | bool]:
    config, sizes, batch_size, zero, recompute = unpack(case)
    options = {
        "tensor-model-parallel-size": sizes["tp"], "pipeline-model-parallel-size": sizes["pp"],
        "context-parallel-size": sizes["cp"], "expert-model-parallel-size": sizes["ep"],
        "micro-batch-size": 1, "global-batch-size": batch_size, "seq-length": config.sequence,
        "max-position-embeddings": config.sequence, "num-layers": config.layers, "hidden-size": config.hidden,
        "ffn-hidden-size": config.ffn, "num-attention-heads": config.heads, "num-query-groups": config.kv_heads,
        "normalization": "RMSNorm", "position-embedding-type": "rope", "rotary-base": 10000,
        "recompute-granularity": recompute,
    }  # fmt: skip
    if recompute == "full":
        options |= {"recompute-method": "uniform", "recompute-num-layers": 1}
    if zero > 1:
        options["data-parallel-sharding-strategy"] = "optim_grads" if zero == 2 else "optim_grads_params"
    on = {"group-query-attention", "swiglu", "disable-bias-linear", "bf16", "calculate-per-token-loss"}
    on |= {"sequence-parallel"} if sizes["tp"] > 1 else set()
    on |= {"use-tp-pp-dp-mapping"} if case[1] else set()
    on |= set() if config.tied else {"untie-embeddings-and-output-weights"}
    on |= ({"use-distributed-optimizer"} if zero else set()) | ({"use-megatron-fsdp"} if zero > 1 else set())
    return {name: str(value) for name, value in options.items()} | dict.fromkeys(on, True)


@exercise("3.5", "megatron_arguments", points=4)
def test_megatron(lab):
    found = lab.on_ranks(1).run(drivers.exported, "megatron_arguments", [*EXPORTS, SWAPPED, STRANGE])[0].value
    for case, got in zip([*EXPORTS, SWAPPED], found, strict=False):
        options, expected = parse(got), megatron_options(case)
        assert options == expected, (
            f"plan {case[0][1:]} {case[1]}: missing or wrong {sorted(set(expected.items()) - set(options.items()))}, "
            f"too much {sorted(set(options.items()) - set(expected.items()))}"
        )
    assert isinstance(found[-1], str), f"Megatron-LM cannot number ranks in the order {STRANGE[1]['order']}"


@exercise("3.5", "nemo_recipe", points=3)
def test_nemo(lab):
    cases = [EXPORTS[0], EXPORTS[2], EXPORTS[3], SWAPPED, STRANGE, EXPORTS[1]]
    found = lab.on_ranks(1).run(drivers.exported, "nemo_recipe", cases)[0].value
    for case, got in zip(cases[:4], found, strict=False):
        config, sizes, batch_size, zero, recompute = unpack(case)
        ranks = checks.ranks_of(sizes)
        strategy = {
            "tensor_model_parallel_size": sizes["tp"],
            "pipeline_model_parallel_size": sizes["pp"],
            "virtual_pipeline_model_parallel_size": None,
            "context_parallel_size": sizes["cp"],
            "expert_model_parallel_size": sizes["ep"],
            "sequence_parallel": sizes["tp"] > 1,
            "use_tp_pp_dp_mapping": bool(case[1]),
        }
        expected = {
            "trainer.num_nodes": max(1, ranks // 8),
            "trainer.devices": min(8, ranks),
            **{f"trainer.strategy.{name}": value for name, value in strategy.items()},
            "data.seq_length": config.sequence,
            "data.micro_batch_size": 1,
            "data.global_batch_size": batch_size,
            "model.config.seq_length": config.sequence,
            "model.config.recompute_granularity": recompute,
            "optim.config.use_distributed_optimizer": zero == 1,
        }
        if recompute == "full":
            expected |= {"model.config.recompute_method": "uniform", "model.config.recompute_num_layers": 1}
        assert got == expected, f"plan {case[0][1:]} {case[1]}:\nexpected {expected}\ngot      {got}"
    assert isinstance(found[-2], str), "NeMo cannot number ranks in that order"
    assert isinstance(found[-1], str), "a NeMo recipe has no ZeRO-3: it must be refused"


# --- Asked of the frameworks themselves, where they are installed -----------------------------------------------------

MEGATRON = """
import dataclasses, json, sys
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.optimizer import OptimizerConfig
from megatron.core.parallel_state import RankGenerator
from megatron.core.transformer import TransformerConfig
question = json.load(sys.stdin)
groups = []
for sizes in question["layouts"]:
    tp, cp, dp, pp, ep = (sizes.get(name, 1) for name in ("tp", "cp", "dp", "pp", "ep"))
    dense = RankGenerator(tp=tp, ep=1, dp=dp, pp=pp, cp=cp, order="tp-cp-ep-dp-pp")
    sparse = RankGenerator(tp=tp, ep=ep, dp=cp * dp // ep, pp=pp, cp=1, order="tp-cp-ep-dp-pp")
    found = {name: dense.get_ranks(name) for name in ("tp", "cp", "dp", "pp")}
    found |= {"data": dense.get_ranks("dp-cp"), "ep": sparse.get_ranks("ep"), "expert_data": sparse.get_ranks("dp")}
    groups.append({name: sorted(map(sorted, each)) for name, each in found.items()})
classes = (TransformerConfig, OptimizerConfig, DistributedDataParallelConfig)
fields = sorted({field.name for each in classes for field in dataclasses.fields(each)})
for settings in question["models"]:
    TransformerConfig(**settings)
print(json.dumps({"groups": groups, "fields": fields}))
"""

NOT_IN_MEGATRON_CORE = {  # read by Megatron-LM's own training loop (megatron/training/arguments.py)
    "micro_batch_size", "global_batch_size", "seq_length", "max_position_embeddings", "group_query_attention", "swiglu",
    "disable_bias_linear", "position_embedding_type", "rotary_base", "untie_embeddings_and_output_weights",
    "use_tp_pp_dp_mapping", "num_query_groups", "calculate_per_token_loss",
}  # fmt: skip


@pytest.mark.skipif(
    find_spec("megatron") is None, reason="Megatron Core is missing: tools/install.sh advanced brings it"
)
def test_megatron_core_agrees(lab):
    """Its rank generator has the same groups, and its TransformerConfig takes the arguments."""
    usual = [case for case in LAYOUTS if case[1] == USUAL]
    ours = lab.on_ranks(1).run(drivers.groups_of, usual, list(checks.SAME))[0].value
    commands = lab.on_ranks(1).run(drivers.exported, "megatron_arguments", EXPORTS)[0].value
    options = [{name.replace("-", "_"): value for name, value in parse(words).items()} for words in commands]
    numbers = {"num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "recompute_num_layers"}
    words = {"normalization", "recompute_granularity", "recompute_method"}
    models = []
    for each in options:
        sizes = {name: int(value) for name, value in each.items() if name in numbers or name.endswith("parallel_size")}
        sizes.pop("expert_model_parallel_size")  # wants num_moe_experts, which a dense plan does not have
        models.append(
            sizes
            | {name: value for name, value in each.items() if name in words}
            | {"num_query_groups": int(each["num_query_groups"]), "sequence_parallel": "sequence_parallel" in each}
            | {"bf16": True, "pipeline_dtype": "bf16", "add_bias_linear": False, "gated_linear_unit": True}
        )
    question = json.dumps({"layouts": [layout for layout, _ in usual], "models": models})
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", MEGATRON], input=question, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answer = json.loads(done.stdout.strip().splitlines()[-1])
    assert answer["groups"] == ours
    unknown = {name for each in options for name in each} - set(answer["fields"]) - NOT_IN_MEGATRON_CORE
    assert not unknown, f"Megatron Core has no such settings: {sorted(unknown)}"


@pytest.mark.skipif(find_spec("torchtitan") is None, reason="TorchTitan is missing: it needs an environment of its own")
def test_torchtitan_agrees(lab):
    """Its dataclasses take the settings."""
    from torchtitan.config.configs import ParallelismConfig, TrainingConfig

    for settings in lab.on_ranks(1).run(drivers.exported, "torchtitan_config", EXPORTS)[0].value:
        TrainingConfig(**settings["training"])
        ParallelismConfig(**settings["parallelism"])
