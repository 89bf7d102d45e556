"""Graded tests of lesson 1.3.

Right sums alone do not earn the points: a built-in collective has them too. What is graded is how they come about, by
the messages each rank sent: how many (rounds), how large, and to whom, as the kit's ledger saw them. Every algorithm
runs once per number of ranks; the tests of its values and of its messages look at that one run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import product

import drivers_collectives as drivers
import pytest
import torch
from checks_collectives import (
    CASES,
    LOOK_AT,
    Case,
    Outcome,
    check_background,
    check_in_group,
    check_messages_only,
    check_refusals,
    check_ring,
    check_tensor,
    check_values,
    numbers,
    outcome_of,
    outcomes_of,
    rounds_of,
)
from torch import Tensor

from shardlab.grade import exercise

on_any_ranks = pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8])


@pytest.fixture(scope="module")
def finished() -> dict[tuple[str, int], list]:
    """Runs so far, by name of the algorithm and number of ranks."""
    return {}


@pytest.fixture
def run(lab, seed, finished) -> Callable[[str, int], list[tuple[Case, list[Outcome]]]]:
    """Every case of an algorithm on so many ranks, with what each rank did in it."""

    def run_once(name: str, ranks: int) -> list[tuple[Case, list[Outcome]]]:
        if (name, ranks) not in finished:
            cases = CASES[name](seed, range(ranks))
            calls = [[case.arguments[rank] for case in cases] for rank in range(ranks)]
            finished[name, ranks] = outcomes_of(cases, lab.on_ranks(ranks).run(drivers.call_each, name, per_rank=calls))
        return finished[name, ranks]

    return run_once


def with_elements(cases: list[tuple[Case, list[Outcome]]]) -> list[tuple[Case, list[Outcome]]]:
    """Without those of an empty tensor, for which messages need not be sent at all."""
    return [(case, outcomes) for case, outcomes in cases if case.numel]


# --- One round --------------------------------------------------------------------------------------------------------


@exercise("1.3", "exchange", points=2)
@pytest.mark.parametrize("members", [[0, 1], [3, 1]])
def test_two_ranks_swap_in_one_round(lab, seed, members):
    order = drivers.group_order(members)
    mine = numbers(seed, 4, 5000, torch.float32)
    results = lab.on_ranks(4).run(drivers.swap, order, per_rank=mine)
    for rank, peer in (order, reversed(order)):
        check_tensor(
            results[rank].value,
            mine[peer],
            f"exchange in the group {order}: rank {rank}",
            "Peers are ranks of the group, not global ones: P2POp takes them as group_peer.",
        )


@exercise("1.3", "exchange", points=2)
@pytest.mark.parametrize("late", [1, 2])
def test_a_round_ends_when_every_message_is_there(lab, seed, late):
    inputs = numbers(seed, 3, 10, torch.float32)
    results = lab.on_ranks(3).run(drivers.gather_at_rank_0, late, per_rank=inputs)
    for sender, received in zip((1, 2), results[0].value, strict=True):
        where = (
            f"exchange with a message from rank 1 and one from rank 2, rank {late} late: what came from rank {sender}"
        )
        check_tensor(received, inputs[sender], where, "batch_isend_irecv returns one handle per message: wait for all.")


# --- Trees ------------------------------------------------------------------------------------------------------------


@exercise("1.3", "broadcast", points=2)
@on_any_ranks
def test_broadcast_values(run, ranks):
    check_values("broadcast", ranks, run)


@exercise("1.3", "broadcast", points=2)
@on_any_ranks
def test_broadcast_is_a_binomial_tree(run, ranks):
    levels = math.ceil(math.log2(ranks))
    for case, outcomes in with_elements(run("broadcast", ranks)):
        where = f"broadcast on {ranks} ranks, {case.what}"
        for outcome in outcomes:
            check_messages_only(where, outcome)
        sent = sum(len(outcome.sends) for outcome in outcomes)
        assert sent == ranks - 1, f"{where}: {sent} messages in all; every rank but the source needs one, {ranks - 1}"
        rounds = rounds_of(where, outcomes)
        assert rounds == levels, (
            f"{where}: {rounds} rounds one after the other, a binomial tree has {levels}. In each round everyone who "
            "has the tensor passes it on: 1, 2, 4, 8 ranks."
        )


@exercise("1.3", "broadcast", points=1)
def test_broadcast_in_a_group(lab, seed):
    check_in_group("broadcast", lab, seed)


@exercise("1.3", "broadcast", points=1)
def test_broadcast_refuses_bad_input(lab):
    check_refusals("broadcast", lab)


@exercise("1.3", "tree_all_reduce", points=2)
@on_any_ranks
def test_tree_all_reduce_values(run, ranks):
    check_values("tree_all_reduce", ranks, run)


@exercise("1.3", "tree_all_reduce", points=2)
@on_any_ranks
def test_tree_all_reduce_goes_up_and_down_once(run, ranks):
    levels = math.ceil(math.log2(ranks))
    for case, outcomes in with_elements(run("tree_all_reduce", ranks)):
        where = f"tree_all_reduce on {ranks} ranks, {case.what}"
        for outcome in outcomes:
            check_messages_only(where, outcome)
        sent = sum(len(outcome.sends) for outcome in outcomes)
        assert sent == 2 * (ranks - 1), (
            f"{where}: {sent} messages in all. {ranks - 1} bring the sum up and {ranks - 1} bring it down: "
            f"{2 * (ranks - 1)}"
        )
        rounds = rounds_of(where, outcomes)
        assert rounds == 2 * levels, (
            f"{where}: {rounds} rounds one after the other, a binomial tree has {levels} up and {levels} down. Rank 0 "
            "must not receive from everybody in turn."
        )


@exercise("1.3", "tree_all_reduce", points=1)
def test_tree_all_reduce_in_a_group(lab, seed):
    check_in_group("tree_all_reduce", lab, seed)


@exercise("1.3", "tree_all_reduce", points=1)
def test_tree_all_reduce_refuses_bad_input(lab):
    check_refusals("tree_all_reduce", lab)


@exercise("1.3", "recursive_doubling_all_reduce", points=2)
@on_any_ranks
def test_recursive_doubling_values(run, ranks):
    check_values("recursive_doubling_all_reduce", ranks, run)


@exercise("1.3", "recursive_doubling_all_reduce", points=2)
@on_any_ranks
def test_recursive_doubling_takes_log2_rounds(run, ranks):
    swaps = int(math.log2(ranks))
    extra = ranks - 2**swaps
    for case, outcomes in with_elements(run("recursive_doubling_all_reduce", ranks)):
        where = f"recursive_doubling_all_reduce on {ranks} ranks, {case.what}"
        for outcome in outcomes:
            check_messages_only(where, outcome)
            cut = [call.numel for call in outcome.sends if call.numel != case.numel]
            assert not cut, f"{where}: rank {outcome.rank} sent {cut[0]} elements, each message is a whole tensor"
        sends = sorted(len(outcome.sends) for outcome in outcomes)
        want = sorted([1] * extra + [swaps + 1] * extra + [swaps] * (ranks - 2 * extra))
        assert sends == want, (
            f"{where}: the ranks sent {sends} messages, expected {want}: {swaps} swaps for each of {2**swaps} ranks"
            + (f", and one message in and out for each of {extra} extra ranks" if extra else "")
        )


@exercise("1.3", "recursive_doubling_all_reduce", points=1)
def test_recursive_doubling_in_a_group(lab, seed):
    check_in_group("recursive_doubling_all_reduce", lab, seed)


@exercise("1.3", "recursive_doubling_all_reduce", points=1)
def test_recursive_doubling_refuses_bad_input(lab):
    check_refusals("recursive_doubling_all_reduce", lab)


# --- Rings ------------------------------------------------------------------------------------------------------------


def halves(
    lab, name: str, seed: int, ranks: int, lengths: Sequence[int], keep_chunks: bool
) -> list[tuple[list[list[Tensor]], list[Outcome], list[list[Tensor]]]]:
    """Per length of vector, cut into chunks: the chunks of each rank, what each did with them, and its sums."""
    vectors = [numbers(seed + numel, ranks, numel, torch.float32) for numel in lengths]
    cut = [[list(tensor.tensor_split(ranks)) for tensor in vector] for vector in vectors]
    results = lab.on_ranks(ranks).run(
        drivers.call_each_with_chunks, name, keep_chunks, per_rank=[list(calls) for calls in zip(*cut, strict=True)]
    )
    watched = [[result.value[index] for result in results] for index in range(len(lengths))]
    return [
        (chunks, [outcome_of(rank, one) for rank, one in enumerate(ones)], [one["sums"] for one in ones])
        for chunks, ones in zip(cut, watched, strict=True)
    ]


@exercise("1.3", "reduce_scatter_chunks", points=3)
@pytest.mark.parametrize("ranks", [1, 3, 4])
@pytest.mark.parametrize("keep_chunks", [False, True], ids=["in place", "one vector for all sums"])
def test_each_rank_ends_with_the_sum_of_its_chunk(lab, seed, ranks, keep_chunks):
    lengths = [4 * ranks, 0] if keep_chunks else [4 * ranks, 2 * ranks - 1, ranks - 1, 0]
    for chunks, outcomes, sums in halves(lab, "reduce_scatter_chunks", seed, ranks, lengths, keep_chunks):
        sizes = [chunk.numel() for chunk in chunks[0]]
        where = f"reduce_scatter_chunks on {ranks} ranks, chunks of {sizes} elements"
        check_ring(where, outcomes, ranks - 1, max(sizes), itemsize=4, exact=len(set(sizes)) == 1)
        for outcome in outcomes:
            rank = outcome.rank
            want = sum(own[rank] for own in chunks)
            check_tensor(
                sums[rank][rank], want, f"{where}: rank {rank}, sums[{rank}]", LOOK_AT["reduce_scatter_chunks"]
            )
            kept = all(map(torch.equal, outcome.arguments[0], chunks[rank]))
            assert kept or not keep_chunks, f"{where}: rank {rank} changed its chunks, though sums is another vector"


@exercise("1.3", "all_gather_chunks", points=3)
@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_each_chunk_reaches_every_rank(lab, seed, ranks):
    lengths = [4 * ranks, 2 * ranks - 1, ranks - 1, 0]
    for chunks, outcomes, _ in halves(lab, "all_gather_chunks", seed, ranks, lengths, keep_chunks=False):
        sizes = [chunk.numel() for chunk in chunks[0]]
        where = f"all_gather_chunks on {ranks} ranks, chunks of {sizes} elements"
        check_ring(where, outcomes, ranks - 1, max(sizes), itemsize=4, exact=len(set(sizes)) == 1)
        for outcome, owner in product(outcomes, range(ranks)):
            place = f"{where}: rank {outcome.rank}, chunks[{owner}]"
            check_tensor(outcome.arguments[0][owner], chunks[owner][owner], place, LOOK_AT["all_gather_chunks"])


@exercise("1.3", "reduce_scatter", points=2)
@on_any_ranks
def test_reduce_scatter_values(run, ranks):
    check_values("reduce_scatter", ranks, run)


@exercise("1.3", "reduce_scatter", points=2)
@on_any_ranks
def test_reduce_scatter_sends_one_block_a_round(run, ranks):
    for case, outcomes in run("reduce_scatter", ranks):
        where = f"reduce_scatter on {ranks} ranks, {case.what}"
        check_ring(where, outcomes, ranks - 1, case.numel // ranks, case.itemsize, exact=True)


@exercise("1.3", "reduce_scatter", points=1)
def test_reduce_scatter_in_a_group(lab, seed):
    check_in_group("reduce_scatter", lab, seed)


@exercise("1.3", "reduce_scatter", points=1)
def test_reduce_scatter_refuses_bad_input(lab):
    check_refusals("reduce_scatter", lab)


@exercise("1.3", "all_gather", points=2)
@on_any_ranks
def test_all_gather_values(run, ranks):
    check_values("all_gather", ranks, run)


@exercise("1.3", "all_gather", points=2)
@on_any_ranks
def test_all_gather_sends_one_block_a_round(run, ranks):
    for case, outcomes in run("all_gather", ranks):
        where = f"all_gather on {ranks} ranks, {case.what}"
        check_ring(where, outcomes, ranks - 1, case.numel // ranks, case.itemsize, exact=True)


@exercise("1.3", "all_gather", points=1)
def test_all_gather_in_a_group(lab, seed):
    check_in_group("all_gather", lab, seed)


@exercise("1.3", "all_gather", points=1)
def test_all_gather_takes_a_block_of_its_output(lab, seed):
    blocks = numbers(seed, 3, 10, torch.float32)
    for result in lab.on_ranks(3).run(drivers.gather_in_place, per_rank=blocks):
        where = f"all_gather whose input is block {result.rank} of its output, 3 ranks: rank {result.rank}"
        check_tensor(result.value, torch.cat(blocks), where, LOOK_AT["all_gather"])


@exercise("1.3", "all_gather", points=1)
def test_all_gather_refuses_bad_input(lab):
    check_refusals("all_gather", lab)


@exercise("1.3", "ring_all_reduce", points=3)
@on_any_ranks
def test_ring_all_reduce_values(run, ranks):
    check_values("ring_all_reduce", ranks, run)


@exercise("1.3", "ring_all_reduce", points=3)
@on_any_ranks
def test_ring_all_reduce_sends_no_more_than_it_must(run, ranks):
    for case, outcomes in run("ring_all_reduce", ranks):
        where = f"ring_all_reduce on {ranks} ranks, {case.what}"
        largest = math.ceil(case.numel / ranks)
        exact = case.numel % ranks == 0
        check_ring(where, outcomes, 2 * (ranks - 1), largest, case.itemsize, exact)


@exercise("1.3", "ring_all_reduce", points=1)
def test_ring_all_reduce_in_a_group(lab, seed):
    check_in_group("ring_all_reduce", lab, seed)


@exercise("1.3", "ring_all_reduce", points=1)
def test_ring_all_reduce_refuses_bad_input(lab):
    check_refusals("ring_all_reduce", lab)
    for result in lab.on_ranks(2).run(drivers.refusal_in_background):
        assert result.value == "call", (
            f"async_op=True with a tensor that is not contiguous: the ValueError came from {result.value}, expected "
            "from the call itself. Check before you start the Handle."
        )


@exercise("1.3", "ring_all_reduce", points=2)
def test_ring_all_reduce_works_in_the_background(lab, seed):
    inputs = numbers(seed, 3, 1000, torch.float32)
    late = lab.on_ranks(3).run(drivers.late_peers, per_rank=inputs)
    for result in late:
        assert result.value["came back while its peers were busy"], (
            "with async_op=True rank 0 did not come back from ring_all_reduce until the other ranks had called it too: "
            "it waited inside the call. Start a Handle and return it."
        )
    busy = lab.on_ranks(3).run(drivers.busy_rank, sum(inputs), per_rank=inputs)
    for result in busy:
        assert result.value, (
            f"rank {result.rank} started a ring, computed for {drivers.PROGRESS_SECONDS:g} s, and its tensor still did "
            "not hold the sum. A ring whose rounds run inside wait() hides no communication: they must run while the "
            "rank computes."
        )
        check_background("ring_all_reduce in the background on 3 ranks", result.rank, result.traffic, 334)


@exercise("1.3", "ring_all_reduce", points=2)
@pytest.mark.parametrize("ranks", [2, 4])
def test_rings_in_flight_do_not_mix(lab, seed, ranks):
    count = 9  # of one length, so that a message taken for another's does not fall over its size
    inputs = [numbers(seed + index, ranks, 5000, torch.float32) for index in range(count)]
    results = lab.on_ranks(ranks).run(drivers.several_in_flight, per_rank=list(map(list, zip(*inputs, strict=True))))
    for result in results:
        where = f"{count} rings in flight at once, {ranks} ranks"
        check_background(where, result.rank, result.traffic, 5000 // ranks)
        for index, tensor in enumerate(result.value):
            check_tensor(
                tensor,
                sum(inputs[index]),
                f"{where}: rank {result.rank}, ring {index}",
                "Messages of two rings were mixed up. Take one next_tag per call, in the caller's thread, and give it "
                "to every message of that call.",
            )


# --- All-to-all -------------------------------------------------------------------------------------------------------


@exercise("1.3", "all_to_all", points=2)
@on_any_ranks
def test_all_to_all_values(run, ranks):
    check_values("all_to_all", ranks, run)


@exercise("1.3", "all_to_all", points=2)
@on_any_ranks
def test_all_to_all_sends_each_block_once_and_straight(run, ranks):
    for case, outcomes in run("all_to_all", ranks):
        where = f"all_to_all on {ranks} ranks, {case.what}"
        for outcome in outcomes:
            check_messages_only(where, outcome)
            blocks = case.arguments[outcome.rank][1]
            want = {peer: block.numel() for peer, block in enumerate(blocks) if peer != outcome.rank and block.numel()}
            sends = [(call.peer, call.numel) for call in outcome.sends]
            assert len(sends) == len(want) and dict(sends) == want, (
                f"{where}: rank {outcome.rank} sent {sends} (to rank, elements), expected {list(want.items())}: each "
                "block goes straight to its rank, once"
            )


@exercise("1.3", "all_to_all", points=1)
def test_all_to_all_in_a_group(lab, seed):
    check_in_group("all_to_all", lab, seed)


@exercise("1.3", "all_to_all", points=1)
def test_all_to_all_refuses_bad_input(lab):
    check_refusals("all_to_all", lab)


# --- The arithmetic ---------------------------------------------------------------------------------------------------


def evaluate(lab, name: str, calls: list[tuple]) -> list:
    return lab.on_ranks(1).run(drivers.evaluate, name, calls)[0].value


def check_all_refused(lab, name: str, calls: list[tuple]) -> None:
    for arguments, value in zip(calls, evaluate(lab, name, calls), strict=True):
        assert str(value).startswith("ValueError"), f"{name}{arguments} must raise ValueError, got {value!r}"


def rounds_and_tensors(algorithm: str, ranks: int) -> tuple[int, float]:
    """Rounds, and full tensors that the busiest rank sends or waits for in them."""
    levels = math.ceil(math.log2(ranks))
    swaps = math.floor(math.log2(ranks)) + (2 if 2 ** math.floor(math.log2(ranks)) < ranks else 0)
    return {
        "broadcast": (levels, levels),
        "tree_all_reduce": (2 * levels, 2 * levels),
        "recursive_doubling_all_reduce": (swaps, swaps),
        "reduce_scatter": (ranks - 1, (ranks - 1) / ranks),
        "all_gather": (ranks - 1, (ranks - 1) / ranks),
        "all_to_all": (ranks - 1, (ranks - 1) / ranks),
        "ring_all_reduce": (2 * (ranks - 1), 2 * (ranks - 1) / ranks),
    }[algorithm]


def model(algorithm: str, num_bytes: int, ranks: int, alpha: float, beta: float) -> float:
    rounds, tensors = rounds_and_tensors(algorithm, ranks)
    return rounds * alpha + tensors * num_bytes * beta


@exercise("1.3", "predict_seconds", points=4)
@pytest.mark.parametrize("algorithm", CASES)
def test_predicted_seconds(lab, algorithm):
    calls = [
        (algorithm, num_bytes, ranks, *cost)
        for ranks in [*range(1, 18), 64, 1000]
        for num_bytes in (0, 4096, 10**9)
        for cost in ((1.0, 0.0), (0.0, 1e-9), (2e-5, 1e-10))
    ]
    for arguments, got in zip(calls, evaluate(lab, "predict_seconds", calls), strict=True):
        want = model(*arguments)
        rounds, tensors = rounds_and_tensors(algorithm, arguments[2])
        assert got == pytest.approx(want, rel=1e-9, abs=1e-15), (
            f"predict_seconds{arguments} is {got}, expected {want:g}: {rounds} rounds, in which one rank sends "
            f"{tensors:g} times the tensor"
        )


@exercise("1.3", "predict_seconds", points=1)
def test_predictions_refuse_bad_input(lab):
    bad = [("bucket_brigade", 8, 2, 1e-5, 1e-9), ("broadcast", 8, 0, 1e-5, 1e-9), ("broadcast", -8, 2, 1e-5, 1e-9)]
    check_all_refused(lab, "predict_seconds", bad)


SWEEP = [4096 * 4**step for step in range(8)]  # 4 KiB ... 64 MiB


def noise(seed: int, count: int, share: float) -> list[float]:
    """Factors between 1 - share and 1 + share."""
    generator = torch.Generator().manual_seed(seed)
    return (1 + share * (2 * torch.rand(count, generator=generator, dtype=torch.float64) - 1)).tolist()


@exercise("1.3", "fit_alpha_beta", points=3)
@pytest.mark.parametrize("share", [0.0, 0.05], ids=["exact times", "5 % noise"])
def test_fit_finds_the_alpha_and_beta_of_the_times(lab, seed, share):
    planted = [(3e-5, 4e-10), (2e-6, 1e-11), (1e-3, 1e-8)]
    runs = [(algorithm, ranks, costs) for algorithm in CASES for ranks in (2, 5, 8) for costs in planted]
    calls = []
    for index, (algorithm, ranks, (alpha, beta)) in enumerate(runs):
        factors = noise(seed + index, len(SWEEP), share)
        times = [
            model(algorithm, size, ranks, alpha, beta) * factor for size, factor in zip(SWEEP, factors, strict=True)
        ]
        calls.append((SWEEP, times, algorithm, ranks))
    tolerance = 2 * share + 1e-6
    for (algorithm, ranks, want), got in zip(runs, evaluate(lab, "fit_alpha_beta", calls), strict=True):
        assert tuple(got) == pytest.approx(want, rel=tolerance), (
            f"{algorithm} on {ranks} ranks, times from alpha {want[0]:g} s and beta {want[1]:g} s per byte"
            f"{f' with {share:.0%} noise' if share else ''}: the fit found {got}. alpha is per message, not per call; "
            "and errors must be relative, else the largest size decides alone."
        )


@exercise("1.3", "fit_alpha_beta", points=1)
def test_fit_refuses_what_it_cannot_fit(lab):
    bad = [
        ([8, 16], [1.0], "broadcast", 2),
        ([8], [1.0], "broadcast", 2),
        ([8, 8], [1.0, 1.1], "broadcast", 2),
        ([8, 16], [1.0, 0.0], "broadcast", 2),
        ([8, 16], [1.0, 2.0], "broadcast", 1),
        ([8, 16], [1.0, 2.0], "bucket_brigade", 2),
    ]
    check_all_refused(lab, "fit_alpha_beta", bad)
    ((alpha, beta),) = evaluate(lab, "fit_alpha_beta", [([10**6, 2 * 10**6], [1e-3, 3e-3], "broadcast", 2)])
    assert alpha == 0 and beta > 0, (
        f"times that grow faster than the bytes: alpha would be negative and is reported as 0, got {alpha}"
    )


@exercise("1.3", "bus_bandwidth", points=2)
def test_bus_bandwidth_as_nccl_tests_counts_it(lab):
    calls, want = [], []
    for ranks in (1, 2, 3, 8, 64):
        share = (ranks - 1) / ranks
        for op, factor in {
            "all_reduce": 2 * share,
            "reduce_scatter": share,
            "all_gather": share,
            "all_to_all": share,
            "broadcast": 1,
            "reduce": 1,
        }.items():
            calls.append((op, 3 * 10**9, 1.5, ranks))
            want.append(2e9 * factor)
    for arguments, got, bandwidth in zip(calls, evaluate(lab, "bus_bandwidth", calls), want, strict=True):
        assert got == pytest.approx(bandwidth, rel=1e-9), (
            f"bus_bandwidth{arguments} is {got} bytes/s, expected {bandwidth:g}: the algorithm bandwidth 2e9 times "
            "what one rank sends per byte of the tensor"
        )


@exercise("1.3", "bus_bandwidth", points=1)
def test_bus_bandwidth_refuses_bad_input(lab):
    bad = [("all_reduce", 8, 0.0, 2), ("all_reduce", 8, 1.0, 0), ("all_reduce", -8, 1.0, 2), ("send", 8, 1.0, 2)]
    check_all_refused(lab, "bus_bandwidth", bad)


@exercise("1.3", "fastest_algorithm", points=2)
def test_fastest_algorithm(lab):
    names = ("ring_all_reduce", "recursive_doubling_all_reduce", "tree_all_reduce")
    calls = [
        (num_bytes, ranks, alpha, 1e-9)
        for ranks in (2, 3, 4, 5, 8, 64, 1000)
        for num_bytes in (4096, 65536, 10**6, 10**8)
        for alpha in (1e-6, 1e-5, 1e-3)
    ]
    for arguments, got in zip(calls, evaluate(lab, "fastest_algorithm", calls), strict=True):
        seconds = {name: model(name, *arguments) for name in names}
        assert got in names and seconds[got] <= min(seconds.values()) * (1 + 1e-9), (
            f"fastest_algorithm{arguments} is {got!r}, but the model predicts {seconds}: ring has many short rounds, "
            "recursive doubling few long ones, and which is better depends on ranks and alpha too"
        )


@exercise("1.3", "fastest_algorithm", points=1)
def test_fastest_algorithm_refuses_bad_input(lab):
    check_all_refused(lab, "fastest_algorithm", [(8, 0, 1e-5, 1e-9), (-8, 2, 1e-5, 1e-9)])
