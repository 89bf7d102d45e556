"""Graded tests of lesson 3.2.

A pipeline that gives the right loss may still be none: all layers on one rank, or all forwards first under the name of
1F1B. So schedules are played by a referee of our own, and a run is held to its schedule: what travels (exactly the
activations' bytes), what a rank holds in flight, in which order it works; and loss and gradients are those of one
process.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import checks_pipeline as checks
import drivers_pipeline as drivers
import pytest
import torch
from checks_pipeline import Plan
from torch import Tensor

from shardlab.grade import exercise
from shardlab.models import build
from shardlab.observe import Traffic


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """The judge's models are small: more threads than one only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


# --- Which layers make a stage? ---------------------------------------------------------------------------------------


def best_cut(costs: Sequence[int], stages: int) -> list[int]:
    """All cuts tried: the smallest (slowest stage, sum of squares, sizes)."""

    def judge(cuts: tuple[int, ...]) -> tuple:
        edges = [0, *cuts, len(costs)]
        sums = [sum(costs[a:b]) for a, b in itertools.pairwise(edges)]
        return max(sums), sum(each**2 for each in sums), [b - a for a, b in itertools.pairwise(edges)]

    return min(map(judge, itertools.combinations(range(1, len(costs)), stages - 1)))[2]


@exercise("3.2", "balance_stages", points=4)
@pytest.mark.parametrize("kind", ["alike", "one large", "zeros", "random"])
def test_the_slowest_stage_is_as_cheap_as_possible(lab, seed, kind):
    rng = random.Random(seed)
    rows = {
        "alike": [[3] * layers for layers in (1, 4, 7, 10)],
        "one large": [[1, 1, 1, 1, 4], [9, 1, 1, 1, 1, 1], [0, 5, 5, 5, 5, 13]],
        "zeros": [[0, 0, 0], [0, 2, 0, 0, 2, 0]],
        "random": [[rng.randrange(1, 30) for _ in range(rng.randrange(5, 11))] for _ in range(6)],
    }[kind]
    cases = [(row, stages) for row in rows for stages in range(1, min(len(row), 5) + 1)]
    for (row, stages), got in zip(
        cases, lab.on_ranks(1).run(drivers.call_each, "balance_stages", cases)[0].value, strict=True
    ):
        expected = best_cut(row, stages)
        assert list(got) == expected, (
            f"layers of costs {row} in {stages} stages: expected {expected} layers per stage, got {got}. First the "
            "slowest stage has to be as cheap as it can be, then the cut even; every stage has a layer."
        )


@exercise("3.2", "balance_stages", points=1)
def test_no_cut_for_bad_input(lab):
    cases = [([1, 1], 3), ([1, 1], 0), ([], 1), ([1, -1, 1], 2), ([1, math.nan], 2)]
    messages = lab.on_ranks(1).run(drivers.errors_of, "balance_stages", cases)[0].value
    for (costs, stages), message in zip(cases, messages, strict=True):
        assert message, f"costs {costs} in {stages} stages: balance_stages must raise a ValueError"


# --- Schedules --------------------------------------------------------------------------------------------------------


def assert_plan(got: dict, expected: Plan, what: str) -> None:
    assert got["placement"] == list(expected.placement), (
        f"{what}: stages should lie on ranks {list(expected.placement)}, got {got['placement']}"
    )
    assert got["micro_batches"] == expected.micro_batches
    assert len(got["actions"]) == len(expected.actions), f"{what}: actions for {len(got['actions'])} ranks"
    for rank, (own, wanted) in enumerate(zip(got["actions"], expected.actions, strict=True)):
        assert own == list(wanted), f"{what}, rank {rank}:\nexpected {' '.join(wanted)}\ngot      {' '.join(own)}"


SIZES = [(1, 1), (1, 3), (2, 1), (2, 3), (4, 4), (4, 8), (3, 2), (5, 2), (8, 12)]  # stages, micro-batches


@exercise("3.2", "gpipe", points=2)
def test_gpipe(lab):
    made = lab.on_ranks(1).run(drivers.make_schedules, "gpipe", SIZES)[0].value
    for (stages, micro_batches), got in zip(SIZES, made, strict=True):
        what = f"gpipe({stages}, {micro_batches})"
        assert_plan(got, checks.gpipe_plan(stages, micro_batches), what)


@exercise("3.2", "one_forward_one_backward", points=4)
def test_1f1b(lab):
    made = lab.on_ranks(1).run(drivers.make_schedules, "one_forward_one_backward", SIZES)[0].value
    for (stages, micro_batches), got in zip(SIZES, made, strict=True):
        what = f"one_forward_one_backward({stages}, {micro_batches})"
        for rank, own in enumerate(got["actions"]):
            most = min(stages - rank, micro_batches)
            assert checks.peak_in_flight(own) == most, (
                f"{what}: rank {rank} holds up to {checks.peak_in_flight(own)} micro-batches between forward and "
                f"backward, {most} are enough. Holding them all is GPipe, whatever the name: {' '.join(own)}"
            )
        assert_plan(got, checks.one_f_one_b_plan(stages, micro_batches), what)


INTERLEAVED = [(2, 2, 2), (2, 6, 3), (4, 4, 2), (4, 8, 2), (3, 6, 4), (1, 4, 2)]  # ranks, micro-batches, chunks


@exercise("3.2", "interleaved", points=4)
def test_interleaved(lab):
    made = lab.on_ranks(1).run(drivers.make_schedules, "interleaved", INTERLEAVED)[0].value
    for (ranks, micro_batches, chunks), got in zip(INTERLEAVED, made, strict=True):
        plan = checks.interleaved_plan(ranks, micro_batches, chunks)
        assert_plan(got, plan, f"interleaved({ranks}, {micro_batches}, {chunks})")


@exercise("3.2", "interleaved", points=1)
def test_interleaved_with_one_chunk_is_1f1b(lab):
    (got,) = lab.on_ranks(1).run(drivers.make_schedules, "interleaved", [(3, 6, 1)])[0].value
    assert_plan(got, checks.one_f_one_b_plan(3, 6), "interleaved(3, 6, 1)")


@exercise("3.2", "gpipe", points=1)
def test_no_gpipe_for_bad_sizes(lab):
    assert_refused(lab, "gpipe", [(0, 4), (2, 0), (-1, 2)])


@exercise("3.2", "one_forward_one_backward", points=1)
def test_no_1f1b_for_bad_sizes(lab):
    assert_refused(lab, "one_forward_one_backward", [(0, 4), (2, 0), (-1, 2)])


@exercise("3.2", "interleaved", points=1)
def test_no_interleaved_for_bad_sizes(lab):
    assert_refused(lab, "interleaved", [(2, 3, 2), (4, 2, 2), (0, 4, 1), (2, 0, 1), (2, 4, 0)])


def assert_refused(lab, name: str, cases: Sequence[tuple[int, ...]]) -> None:
    messages = lab.on_ranks(1).run(drivers.errors_of, name, cases)[0].value
    for case, message in zip(cases, messages, strict=True):
        assert message, f"{name}{case} must raise a ValueError"


# --- Play, check, simulate --------------------------------------------------------------------------------------------


def valid_plans(seed: int) -> list[Plan]:
    rng = random.Random(seed)
    at_random = [
        checks.random_plan(rng, ranks, ranks + more, m) for ranks, more, m in [(2, 0, 3), (2, 2, 2), (3, 1, 4)]
    ]
    known = [checks.gpipe_plan(3, 4), checks.one_f_one_b_plan(4, 5), checks.interleaved_plan(2, 4, 2)]
    return [checks.gpipe_plan(1, 1), *known, *at_random]


def broken_plans(seed: int) -> list[checks.Broken]:
    rng = random.Random(seed)
    plans = [plan for plan in valid_plans(seed) if len(plan.actions) > 1]
    return [broken for plan in plans for broken in checks.broken_plans(rng, plan)]


@exercise("3.2", "run_order", points=3)
def test_played_in_rounds(lab, seed):
    plans = valid_plans(seed)
    for plan, got in zip(plans, lab.on_ranks(1).run(drivers.order_of, plans)[0].value, strict=True):
        expected = checks.rounds(plan)
        assert got == expected, (
            f"in each round every rank does its next action, if what it needs was done in an earlier round; ranks of "
            f"a round in ascending order.\n{plan}\nexpected {' '.join(expected)}\ngot      {' '.join(got)}"
        )


@exercise("3.2", "run_order", points=2)
def test_played_as_far_as_it_goes(lab, seed):
    stuck = [broken for broken in broken_plans(seed) if "wait" in broken.what or "before its own" in broken.what]
    found = lab.on_ranks(1).run(drivers.order_of, [broken.plan for broken in stuck])[0].value
    for broken, got in zip(stuck, found, strict=True):
        expected = checks.rounds(broken.plan)
        assert got == expected, (
            f"{broken.what}: this schedule gets stuck.\n{broken.plan}\nexpected {' '.join(expected)}\n"
            f"got      {' '.join(got)}"
        )


@exercise("3.2", "check_schedule", points=2)
def test_nothing_is_wrong_with_a_valid_schedule(lab, seed):
    plans = valid_plans(seed)
    for plan, got in zip(plans, lab.on_ranks(1).run(drivers.problems_of, plans)[0].value, strict=True):
        assert got == [], f"this schedule runs to its end, check_schedule says {got}\n{plan}"


@exercise("3.2", "check_schedule", points=6)
@pytest.mark.parametrize(
    "kind", ["left out", "twice", "another rank", "added", "before its own", "wait for each other"]
)
def test_what_is_wrong_is_named(lab, seed, kind):
    cases = [broken for broken in broken_plans(seed) if kind in broken.what]
    assert cases
    found = lab.on_ranks(1).run(drivers.problems_of, [broken.plan for broken in cases])[0].value
    for broken, got in zip(cases, found, strict=True):
        story = f"{broken.what}:\n{broken.plan}\ncheck_schedule said {got}"
        for rank, action in broken.blamed:
            sentences = [each for each in got if each.startswith(f"rank {rank}: {action} ")]
            assert sentences, f'{story}\none sentence should begin with "rank {rank}: {action} "'
            mention = broken.mentions[rank, action]
            assert any(mention in each for each in sentences), f"{story}\nit should say {mention!r}"
        innocent = [each for each in got if not any(action in each for _, action in broken.blamed)]
        assert not innocent, f"{story}\nthere is nothing wrong with what this names: {innocent}"


@exercise("3.2", "Timeline.bubble", points=2)
def test_bubble_is_the_idle_share(lab, seed):
    rng = random.Random(seed)
    early = [("0F0", 5, 7), ("0B0", 9, 10)]
    late = [("1F0", 7, 8), ("1B0", 8, 8 + rng.randrange(1, 5))]
    cases = [[early, late], [[("0F0", 0, 2), ("0B0", 2, 4)]], [[("0F0", 0.0, 2.0)], [("1F0", 2.0, 4.0)], []]]
    for ranks, got in zip(cases, lab.on_ranks(1).run(drivers.read_timeline, cases)[0].value, strict=True):
        spans = list(itertools.chain(*ranks))
        whole = len(ranks) * (max(end for *_, end in spans) - min(start for _, start, _ in spans))
        expected = 1 - sum(end - start for _, start, end in spans) / whole
        assert got["bubble"] == pytest.approx(expected, abs=1e-12), (
            f"spans of the ranks {ranks}: idle is a share {expected:.4f} of {len(ranks)} ranks times the makespan, got "
            f"{got['bubble']:.4f}. Time runs from the first start, which need not be 0; a rank without work is idle."
        )


@exercise("3.2", "Timeline.peak_in_flight", points=2)
def test_peak_in_flight(lab):
    plans = [checks.gpipe_plan(3, 5), checks.one_f_one_b_plan(4, 6), checks.interleaved_plan(2, 4, 2)]
    cases = [[[(word, k, k + 1) for k, word in enumerate(own)] for own in plan.actions] for plan in plans]
    cases.append([[], [("1F0", 0, 1), ("1B0", 1, 2)]])
    for ranks, got in zip(cases, lab.on_ranks(1).run(drivers.read_timeline, cases)[0].value, strict=True):
        expected = [checks.peak_in_flight([word for word, *_ in own]) if own else 0 for own in ranks]
        assert got["peak"] == expected, (
            f"forwards that wait for their backward, at most: {expected} on the ranks, got {got['peak']} for {ranks}"
        )


@exercise("3.2", "simulate", points=5)
@pytest.mark.parametrize("stages_are", ["equal", "unequal"])
@pytest.mark.parametrize("transfer", [0, 2])
def test_every_action_begins_as_soon_as_it_can(lab, seed, stages_are, transfer):
    rng = random.Random(seed)
    cases = []
    for plan in valid_plans(seed):
        count = len(plan.placement)
        costs = (
            [rng.randrange(1, 9) for _ in range(2 * count)] if stages_are == "unequal" else [3] * count + [5] * count
        )
        given = (costs[:count], costs[count:]) if stages_are == "unequal" else (3, 5)
        cases.append(((plan, *given, transfer), (plan, costs[:count], costs[count:], transfer)))
    found = lab.on_ranks(1).run(drivers.timeline_of, [asked for asked, _ in cases])[0].value
    for (_, case), got in zip(cases, found, strict=True):
        plan, forward, backward, _ = case
        expected = checks.times(*case)
        for rank, own in enumerate(got):
            assert [word for word, *_ in own] == list(plan.actions[rank]), f"rank {rank} runs other actions: {own}"
            for word, start, end in own:
                assert (start, end) == expected[word], (
                    f"{plan}\nforward {forward}, backward {backward} by stage, transfer {transfer} between ranks: rank "
                    f"{rank} should run {word} from {expected[word][0]} to {expected[word][1]}, not {start} to {end}"
                )


@exercise("3.2", "simulate", points=3)
def test_the_bubble_is_the_formula(lab):
    cases, expected = [], []
    for ranks, micro_batches, forward, backward in [
        (1, 3, 1, 2),
        (2, 2, 1, 1),
        (4, 4, 1, 2),
        (4, 8, 2, 3),
        (8, 24, 1, 2),
    ]:
        for make in (checks.gpipe_plan, checks.one_f_one_b_plan):
            cases.append((make(ranks, micro_batches), forward, backward))
            expected.append((ranks - 1) / (micro_batches + ranks - 1))
        for chunks in (2, 3):
            cases.append((checks.interleaved_plan(ranks, micro_batches, chunks), forward, backward))
            expected.append((ranks - 1) / (chunks * micro_batches + ranks - 1))
    timelines = lab.on_ranks(1).run(drivers.timeline_of, cases)[0].value
    for (plan, forward, backward), formula, ranks in zip(cases, expected, timelines, strict=True):
        makespan = max(end for own in ranks for _, _, end in own)
        busy = sum(end - start for own in ranks for _, start, end in own)
        bubble = 1 - busy / (len(ranks) * makespan)
        assert bubble == pytest.approx(formula, abs=1e-12), (
            f"{len(ranks)} ranks, {plan.micro_batches} micro-batches, {len(plan.placement)} equal stages, forward "
            f"{forward}, backward {backward}: the bubble is {formula:.4f}, simulated {bubble:.4f}"
        )


@exercise("3.2", "simulate", points=1)
def test_nothing_to_simulate(lab, seed):
    plan = checks.one_f_one_b_plan(2, 2)
    broken = checks.broken_plans(random.Random(seed), plan)[0].plan
    cases = {
        "a schedule with a missing action": (broken, 1, 1, 0),
        "3 forward times for 2 stages": (plan, [1, 1, 1], 1, 0),
        "a negative backward": (plan, 1, -1, 0),
        "a negative transfer": (plan, 1, 1, -1),
    }
    messages = lab.on_ranks(1).run(drivers.simulate_errors, list(cases.values()))[0].value
    for what, message in zip(cases, messages, strict=True):
        assert message, f"simulate must raise a ValueError for {what}"


# --- The batch --------------------------------------------------------------------------------------------------------


@exercise("3.2", "split_batch", points=3)
def test_micro_batches_weigh_what_they_hold(lab, seed):
    generator = torch.Generator().manual_seed(seed)
    cases = []
    for rows, micro_batches, dropped in [(8, 4, None), (7, 3, None), (5, 5, None), (6, 4, 2), (1, 1, None)]:
        inputs = torch.randint(9, (rows, 4), generator=generator)
        targets = torch.randint(9, (rows, 4), generator=generator)
        targets[torch.rand(rows, 4, generator=generator) < 0.4] = -100
        targets[0, 0] = 1
        cases.append((inputs, targets, micro_batches, dropped))
    found = lab.on_ranks(1).run(drivers.split_each, cases)[0].value
    for (inputs, targets, micro_batches, dropped), parts in zip(cases, found, strict=True):
        what = f"{len(inputs)} rows in {micro_batches} micro-batches"
        for place, whole, name in [(0, inputs, "inputs"), (1, targets, "targets")]:
            sizes = [len(part[place]) for part in parts]
            assert sizes == [len(part) for part in whole.tensor_split(micro_batches)], f"{what}: {sizes} rows"
            assert torch.equal(torch.cat([part[place] for part in parts]), whole), f"{what}: not the rows of {name}"
        counts = [int((part[1] != (-100 if dropped is None else dropped)).sum()) for part in parts]
        expected = [count / sum(counts) for count in counts]
        assert [part[2] for part in parts] == pytest.approx(expected), (
            f"{what} with {counts} valid targets: weights {[part[2] for part in parts]}, expected {expected}. A mean "
            "over a micro-batch counts as much as it has targets."
        )


@exercise("3.2", "split_batch", points=1)
def test_no_micro_batches_of_nothing(lab):
    x = torch.ones(4, 3, dtype=torch.int64)
    cases = [(x, x, 5), (x, x, 0), (x, x[:3], 2), (x, torch.full_like(x, -100), 2)]
    messages = lab.on_ranks(1).run(drivers.errors_of, "split_batch", cases)[0].value
    for what, message in zip(["5 of 4 rows", "0", "unequal rows", "no valid target"], messages, strict=True):
        assert message, f"split_batch must raise a ValueError for {what}"


# --- The stage --------------------------------------------------------------------------------------------------------


@pytest.fixture
def by_hand(seed):
    """Three micro-batches through a stage, and what autograd makes of them: for the two tests of a stage alone."""
    generator = torch.Generator().manual_seed(seed)
    inputs = list(torch.randn(3, 2, 4, generator=generator))
    gradients = list(torch.randn(3, 2, 3, generator=generator))
    torch.manual_seed(0)
    module = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh())
    leaves = [x.clone().requires_grad_() for x in inputs]
    outputs = [module(x) for x in leaves]
    torch.autograd.backward(outputs, gradients)
    parameters = {name: parameter.grad for name, parameter in module.named_parameters()}
    return inputs, gradients, [y.detach() for y in outputs], [x.grad for x in leaves], parameters


@exercise("3.2", "PipelineStage.forward_micro_batch", points=2)
def test_a_stage_keeps_what_backward_needs(lab, by_hand):
    inputs, gradients, outputs, *_ = by_hand
    value = lab.on_ranks(1).run(drivers.stage_alone, inputs, gradients, [1, 0, 2])[0].value
    for m, (got, expected) in enumerate(zip(value["outputs"], outputs, strict=True)):
        assert_close(got, expected, f"output of micro-batch {m}")
    assert value["in_flight"][0] == 3, (
        f"three forwards without a backward: in_flight should hold 3 entries, it holds {value['in_flight'][0]}"
    )


@exercise("3.2", "PipelineStage.backward_micro_batch", points=3)
def test_backward_of_one_micro_batch_at_a_time(lab, by_hand):
    inputs, gradients, _, received, parameters = by_hand
    value = lab.on_ranks(1).run(drivers.stage_alone, inputs, gradients, [1, 0, 2])[0].value
    for m, expected in enumerate(received):
        got = value["received"][m]
        assert got is not None, f"micro-batch {m}: the stage below waits for the gradient of its output, got None"
        assert_close(got, expected, f"gradient of the input of micro-batch {m}, backwards in the order 1, 0, 2")
    for name, expected in parameters.items():
        assert_close(value["parameters"][name], expected, f"gradient of {name}, summed over three micro-batches")
    assert value["in_flight"] == [3, 2, 1, 0], (
        f"each backward lets go of its micro-batch: entries in flight {value['in_flight']}, expected [3, 2, 1, 0]"
    )


@exercise("3.2", "PipelineStage.backward_micro_batch", points=1)
@pytest.mark.parametrize("frozen", [False, True])
def test_the_first_stage_sends_no_gradient(lab, frozen):
    tokens = torch.tensor([[1, 1, 4]])
    value = lab.on_ranks(1).run(drivers.first_stage_alone, tokens, frozen)[0].value
    assert value["gradient"] is None, "nobody stands below stage 0: its input has no gradient"
    assert value["in_flight"] == 0
    if frozen:
        assert value["weight"] is None, "a frozen embedding gets no gradient"
    else:
        assert value["weight"].sum(1).tolist() == [0, 6, 0, 0, 3], f"the embedding's gradient is {value['weight']}"


def test_a_stage_may_be_told_where_its_tokens_stand(lab):
    """Given code, for sequences of which a rank has a part (3.5)."""
    stage, whole = lab.on_ranks(1).run(drivers.moved_stage, torch.tensor([[3, 1, 4, 1]]), 7)[0].value
    assert torch.equal(stage, whole)


@exercise("3.2", "PipelineStage.backward_micro_batch", points=2)
def test_only_the_last_backward_synchronises(lab):
    plan = checks.interleaved_plan(2, 4, 2)
    results = lab.on_ranks(2).run(drivers.synchronised_backwards, plan)
    for rank, result in enumerate(results):
        for stage, notes in result.value.items():
            assert notes == [True, True, True, False], (
                f"rank {rank}, stage {stage}, 4 micro-batches: data parallelism should average once, in the stage's "
                f"last backward; the others run inside no_sync. Inside were {notes}"
            )


# --- Tied parameters --------------------------------------------------------------------------------------------------


@exercise("3.2", "PipelineStage.summed_tied_gradients", points=4)
@pytest.mark.parametrize("placement", [(1, 0), (0, 1, 2), (2, 0, 1, 0)])
def test_both_copies_get_the_sum(lab, seed, placement):
    generator = torch.Generator().manual_seed(seed)
    ranks, ends, calls = max(placement) + 1, (placement[0], placement[-1]), 3
    own = [list(torch.randn(calls, 3, 2, generator=generator)) for _ in range(ranks)]
    own[ends[0]][1] = None  # in the second call the first stage has no gradient: its copy counts as zero
    results = lab.on_ranks(ranks).run(drivers.sum_tied, placement, per_rank=own)
    total = torch.zeros(3, 2)
    for call in range(calls):
        total = total + sum(own[end][call] for end in ends if own[end][call] is not None)
        for end in ends:
            got = results[end].value["gradients"][call]
            assert got is not None, f"rank {end} has no gradient after call {call}, its partner had one"
            assert_close(
                got,
                total,
                f"rank {end} after call {call}: the sum of both copies' gradients of all calls so far. What "
                "was summed in an earlier call must not be summed again",
            )
            other = results[sum(ends) - end].value["gradients"][call]
            assert torch.equal(got, other), f"after call {call} the two copies differ in some bit: they will drift"
    for rank, result in enumerate(results):
        calls_made = [(call.op, call.payload_bytes) for call in Traffic.from_data(result.value["traffic"]).calls]
        wanted = [("send", 24), ("recv", 24)] * calls if rank in ends else []
        assert sorted(calls_made) == sorted(wanted), (
            f"rank {rank}, ends {ends}: one message of 24 bytes each way between the ends per call, got {calls_made}"
        )


@exercise("3.2", "PipelineStage.summed_tied_gradients", points=1)
def test_one_rank_with_both_ends_has_nothing_to_sum(lab):
    own = [[torch.ones(3, 2)] * 2, [None, None]]
    results = lab.on_ranks(2).run(drivers.sum_tied, [0, 1, 0], per_rank=own)
    assert torch.equal(results[0].value["gradients"][1], torch.full((3, 2), 2.0)), (
        "first and last stage lie on rank 0 and share one parameter: its gradients add up by themselves"
    )
    assert not any(result.value["traffic"] for result in results), "nothing has to travel"


# --- Messages ---------------------------------------------------------------------------------------------------------


def exchange_cases(seed: int, ranks: int) -> list[Plan]:
    rng = random.Random(seed)
    return [
        checks.one_f_one_b_plan(ranks, 6),
        checks.random_plan(rng, ranks, ranks + 1, 4),
        checks.random_plan(rng, ranks, ranks + 2, 3),
    ]


@exercise("3.2", "Mailbox.take", points=3)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_what_arrives_is_what_was_asked_for(lab, seed, ranks):
    plans = exchange_cases(seed, ranks)
    results = lab.on_ranks(ranks).run(drivers.exchange_each, plans)
    for (rank, result), (number, plan) in itertools.product(enumerate(results), enumerate(plans)):
        got = result.value[number]
        assert not got["wrong"], f"rank {rank} took something else: {got['wrong']}\n{plan}"
        assert got["left"] == 0, f"rank {rank}: {got['left']} tensors were never taken\n{plan}"


@exercise("3.2", "Mailbox.take", points=1)
def test_memory_of_messages_is_given_back(lab):
    (first, _) = lab.on_ranks(2).run(drivers.exchange_by_hand, checks.one_f_one_b_plan(2, 16))
    held = first.value["held"]
    assert held <= 4, (
        f"rank 0 of 2 in 1F1B has started {held} messages that it has not waited for, of 32. Who receives a message "
        "from a peer knows that all before it were started on both sides: wait for those too, and let go of them."
    )


@exercise("3.2", "Mailbox.advance", points=4)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_a_pair_starts_its_messages_in_one_order(lab, seed, ranks):
    plans = exchange_cases(seed + 1, ranks)
    results = lab.on_ranks(ranks).run(drivers.exchange_each, plans)
    for number, plan in enumerate(plans):
        calls = [Traffic.from_data(result.value[number]["traffic"]).calls for result in results]
        for a, b in itertools.combinations(range(ranks), 2):
            of_a = [call.op for call in calls[a] if call.peer == b]
            of_b = [{"send": "recv", "recv": "send"}[call.op] for call in calls[b] if call.peer == a]
            assert of_a == of_b, (
                f"ranks {a} and {b} start their messages in different orders. Seen from rank {a}: {of_a}; as rank {b} "
                f"has it: {of_b}. NCCL runs the messages of a pair in the order in which each side starts them: "
                f"crosswise, both wait for ever.\n{plan}"
            )
        blocking = [call for own in calls for call in own if not call.async_op]
        assert not blocking, f"{blocking[0]} at {blocking[0].file}:{blocking[0].line} blocks: use isend and irecv"


@exercise("3.2", "Mailbox.advance", points=1)
def test_receives_start_before_they_are_needed(lab):
    """The last of two ranks in GPipe: nothing of its own to send stands between the activations."""
    (_, last) = lab.on_ranks(2).run(drivers.exchange_by_hand, checks.gpipe_plan(2, 4))
    events = Traffic.from_data(last.value["traffic"]).events
    names = [getattr(event, "name", None) or event.op for event in events]
    before = names[: names.index("begin 1F0")]
    assert before == ["recv"] * 4, (
        f"rank 1 has four activations to receive before it sends anything: all four can start at once, so that they "
        f"arrive while it computes. Before its first action it started {before}"
    )


# --- The run ----------------------------------------------------------------------------------------------------------


def batch_of(seed: int, sizes: Sequence[tuple[int, int]], padding: float = 0.3) -> drivers.Batch:
    """A micro-batch for each (rows, length), with different numbers of valid targets, and weights that say so."""
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for rows, length in sizes:
        tokens = torch.randint(drivers.CONFIG.vocab, (rows, length + 1), generator=generator)
        targets = tokens[:, 1:].clone()
        targets[torch.rand(rows, length, generator=generator) < padding] = -100
        targets[0, 0] = 3
        parts.append((tokens[:, :-1].contiguous(), targets))
    counts = [int((targets != -100).sum()) for _, targets in parts]
    return [(x, y, count / sum(counts)) for (x, y), count in zip(parts, counts, strict=True)]


def alone(batch: drivers.Batch) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one process: the mean over all valid targets of the batch."""
    model = build(drivers.CONFIG)
    counts = [int((targets != -100).sum()) for _, targets, _ in batch]
    sums = [drivers.mean_loss(model(x), y) * count for (x, y, _), count in zip(batch, counts, strict=True)]
    loss = sum(sums) / sum(counts)
    loss.backward()
    return loss.item(), {name: parameter.grad for name, parameter in model.named_parameters()}


def assert_close(got: Tensor, expected: Tensor, what: str, allowed: float = 1e-5) -> None:
    assert got.shape == expected.shape, f"{what}\nexpected shape {list(expected.shape)}, got {list(got.shape)}"
    error = (got - expected).abs().max().item()
    assert error <= allowed * expected.abs().max().item(), (
        f"{what}\nexpected {expected.flatten()[:4].tolist()} ...\ngot      {got.flatten()[:4].tolist()} ...\n"
        f"off by {error:.2e}"
    )


def assert_like_one_process(values: Sequence[dict], plan: Plan, batch: drivers.Batch, times: float = 1.0) -> None:
    """Loss on the last stage's rank only; gradients of all layers, tied copies alike, `times` those of one call."""
    loss, gradients = alone(batch)
    for rank, value in enumerate(values):
        if rank == plan.placement[-1]:
            assert value["loss"] is not None, f"rank {rank} holds the last stage and must return the loss, got None"
            assert value["loss"] == pytest.approx(loss, rel=1e-5), (
                f"loss {value['loss']:.6f} on rank {rank}, one process has {loss:.6f}: the sum over all micro-batches "
                f"of mean loss times weight\n{plan}"
            )
            assert value["detached"], "the loss that is returned must have no history: it would keep activations alive"
        else:
            assert value["loss"] is None, f"rank {rank} does not hold the last stage: it returns None"
        for name, got in value["gradients"].items():
            expected = times * gradients["embedding.weight" if name == "head.weight" else name]
            assert got is not None, f"rank {rank}: {name} has no gradient\n{plan}"
            ratio = ((got * expected).sum() / (expected * expected).sum()).item() * times
            assert_close(
                got,
                expected,
                f"rank {rank}: gradient of {name}, {ratio:.4f} times that of one process on the whole "
                f"batch, expected {times:.1f} times\n{plan}",
            )
        assert value["left_in_flight"] == 0, f"rank {rank} still holds {value['left_in_flight']} micro-batches"
        assert value["spans"] == list(plan.actions[rank]), (
            f"rank {rank} should run {' '.join(plan.actions[rank])}, its spans say {' '.join(value['spans'])}"
        )
    if plan.placement[0] != plan.placement[-1]:
        first, last = (values[plan.placement[end]]["gradients"] for end in (0, -1))
        assert torch.equal(first["embedding.weight"], last["head.weight"]), "the tied copies' gradients differ"


KNOWN = {
    "gpipe 1": checks.gpipe_plan(1, 3),
    "gpipe 2": checks.gpipe_plan(2, 4),
    "gpipe 3": checks.gpipe_plan(3, 5),
    "interleaved 2": checks.interleaved_plan(2, 4, 2),
    "1F1B 3": checks.one_f_one_b_plan(3, 2),
    "interleaved 4": checks.interleaved_plan(4, 4, 2),
    "1F1B 4": checks.one_f_one_b_plan(4, 6),
}
SHAPES = [(2, 5), (1, 9), (3, 2), (2, 8), (1, 3), (2, 7)]  # rows and length of micro-batches


@exercise("3.2", "run_schedule", points=7)
@pytest.mark.parametrize("plan", KNOWN.values(), ids=KNOWN)
def test_same_as_one_process(lab, seed, plan):
    batch = batch_of(seed, SHAPES[: plan.micro_batches])
    results = lab.on_ranks(len(plan.actions)).run(drivers.run, plan, batch)
    assert_like_one_process([result.value for result in results], plan, batch)


@exercise("3.2", "run_schedule", points=3)
def test_several_calls_accumulate(lab, seed):
    plan = checks.one_f_one_b_plan(2, 4)
    batch = batch_of(seed, SHAPES[:4])
    results = lab.on_ranks(2).run(drivers.run, plan, batch, 3)
    assert_like_one_process([result.value for result in results], plan, batch, times=3.0)


@exercise("3.2", "run_schedule", points=2)
def test_training_stays_that_of_one_process(lab, seed):
    plan = checks.one_f_one_b_plan(3, 4)
    batches = [batch_of(seed + step, SHAPES[:4]) for step in range(3)]
    results = lab.on_ranks(3).run(drivers.train, plan, batches)
    model = build(drivers.CONFIG)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    for batch in batches:
        optimizer.zero_grad()
        sum(drivers.mean_loss(model(x), y) * weight for x, y, weight in batch).backward()
        optimizer.step()
    expected = {name: parameter.detach() for name, parameter in model.named_parameters()}
    for rank, result in enumerate(results):
        for name, got in result.value.items():
            of_one = expected["embedding.weight" if name == "head.weight" else name]
            assert_close(got, of_one, f"rank {rank}: {name} after 3 steps of SGD with momentum")
    assert torch.equal(results[0].value["embedding.weight"], results[2].value["head.weight"]), "the tied copies drifted"


@exercise("3.2", "run_schedule", points=4)
@pytest.mark.parametrize(
    "plan", [KNOWN["gpipe 3"], KNOWN["interleaved 2"], KNOWN["1F1B 4"]], ids=["gpipe", "v 2", "1F1B"]
)
def test_what_travels_is_the_activations(lab, seed, plan):
    sizes = [(2, 6)] * plan.micro_batches
    each = 2 * 6 * drivers.HIDDEN_BYTES
    results = lab.on_ranks(len(plan.actions)).run(drivers.run, plan, batch_of(seed, sizes))
    ends = (plan.placement[0], plan.placement[-1])
    for rank, result in enumerate(results):
        traffic = Traffic.from_data(result.value["traffic"])
        forward, backward = checks.messages(plan, rank)
        expected = (forward + backward) * each + (drivers.TIED_BYTES if rank in ends else 0)
        assert set(traffic.ops()) <= {"send", "recv"}, (
            f"rank {rank} uses {set(traffic.ops())}: send and recv are enough"
        )
        assert traffic.sent_bytes() == expected, (
            f"rank {rank} sends {forward} activations and {backward} gradients of {each} bytes, and "
            f"{'its' if rank in ends else 'no'} tied gradient: {expected} bytes, not {traffic.sent_bytes()}"
        )


@exercise("3.2", "run_schedule", points=4)
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_any_valid_schedule_runs(lab, seed, ranks):
    rng = random.Random(seed)
    plans = [checks.random_plan(rng, ranks, ranks + rng.randrange(3), rng.randrange(1, 6)) for _ in range(6)]
    batches = [batch_of(seed + number, SHAPES[: plan.micro_batches]) for number, plan in enumerate(plans)]
    results = lab.on_ranks(ranks).run(drivers.run_each, plans, batches)
    for number, (plan, batch) in enumerate(zip(plans, batches, strict=True)):
        assert_like_one_process([result.value[number] for result in results], plan, batch)


@exercise("3.2", "run_schedule", points=3)
def test_a_broken_schedule_is_refused_on_every_rank(lab, seed):
    rng = random.Random(seed)
    cases = checks.broken_plans(rng, checks.one_f_one_b_plan(3, 3)) + checks.broken_plans(
        rng, checks.random_plan(rng, 3, 4, 3)
    )
    results = lab.on_ranks(3).run(drivers.refusals, [broken.plan for broken in cases], batch_of(seed, SHAPES[:3]))
    for rank, result in enumerate(results):
        for broken, got in zip(cases, result.value, strict=True):
            story = f"rank {rank}, {broken.what}:\n{broken.plan}\n"
            assert got["message"], f"{story}run_schedule must raise a ValueError"
            for blamed, action in broken.blamed:
                assert f"rank {blamed}: {action}" in got["message"], (
                    f"{story}the error should say what check_schedule says of rank {blamed}, {action}: {got['message']}"
                )
            assert got["calls"] == 0, f"{story}it communicated before it refused: the others wait"


@exercise("3.2", "run_schedule", points=3)
@pytest.mark.parametrize("name", ["1F1B", "random"])
def test_the_run_keeps_to_the_schedule(lab, seed, name):
    plan = checks.one_f_one_b_plan(3, 8) if name == "1F1B" else checks.random_plan(random.Random(seed), 3, 5, 4)
    results = lab.on_ranks(3).run(drivers.watched_run, plan, 2)
    for rank, result in enumerate(results):
        log, own = result.value["log"], plan.actions[rank]
        most = checks.peak_in_flight(own)
        held = checks.peak_in_flight(log)
        assert held == most, (
            f"rank {rank} had {held} micro-batches between forward and backward, the schedule {most}. It ran "
            f"{' '.join(log)}"
        )
        assert log == list(own), f"rank {rank} should run {' '.join(own)}, it ran {' '.join(log)}"


@exercise("3.2", "run_schedule", points=2)
def test_1f1b_needs_less_memory_than_gpipe(lab):
    peaks = {}
    for name, plan in {"GPipe": checks.gpipe_plan(2, 12), "1F1B": checks.one_f_one_b_plan(2, 12)}.items():
        results = lab.on_ranks(2).run(drivers.watched_run, plan, 64)
        peaks[name] = [result.value["peak"] for result in results]
    for rank in range(2):
        assert peaks["1F1B"][rank] < 0.5 * peaks["GPipe"][rank], (
            f"rank {rank}: peak of activations and gradients {peaks['1F1B'][rank]:,} bytes in 1F1B, "
            f"{peaks['GPipe'][rank]:,} in GPipe, which holds all 12 micro-batches where 1F1B holds {2 - rank}. What is "
            "still held after its backward?"
        )


@exercise("3.2", "run_schedule", points=2)
def test_two_pipelines_side_by_side(lab, seed):
    groups = [[3, 0], [1, 2, 4]]
    plans = [checks.one_f_one_b_plan(2, 3), checks.gpipe_plan(3, 2)]
    batches = [batch_of(seed + number, SHAPES[: plan.micro_batches]) for number, plan in enumerate(plans)]
    own = [next((plans[n], batches[n]) for n, group in enumerate(groups) if rank in group) for rank in range(5)]
    results = lab.on_ranks(5).run(drivers.run_in_groups, groups, per_rank=own)
    for group, plan, batch in zip(groups, plans, batches, strict=True):
        ordered = sorted(group)  # ranks in a group are numbered in ascending order
        assert_like_one_process([results[rank].value for rank in ordered], plan, batch)


@exercise("3.2", "run_schedule", points=1)
def test_a_failed_run_leaves_nothing_behind(lab, seed):
    plan, batch = checks.gpipe_plan(1, 3), batch_of(seed, SHAPES[:3])
    value = lab.on_ranks(1).run(drivers.after_an_error, plan, batch)[0].value
    assert "no such token" in value["message"], "an error in the loss function has to come out of run_schedule"
    loss, gradients = alone(batch)
    assert value["loss"] == pytest.approx(loss, rel=1e-5)
    for name, got in value["gradients"].items():
        assert_close(got, gradients[name], f"gradient of {name} in the run after a failed one")
    assert value["left_in_flight"] == 0


@exercise("3.2", "run_schedule", points=1)
def test_nobody_waits_for_ever(lab, seed):
    plan, batch, seconds = checks.one_f_one_b_plan(3, 2), batch_of(seed, SHAPES[:2]), 1.0
    results = lab.on_ranks(3).run(drivers.wait_in_vain, plan, batch, seconds)
    for rank in (0, 2):
        value = results[rank].value
        assert "rank 1" in value["message"], (
            f"rank 1 does not take part: rank {rank} should give up at the group's timeout of {seconds} s with a "
            f"RuntimeError that names it, got {value['message'] or 'no error'!r}"
        )
        assert value["seconds"] < 8 * seconds, (
            f"rank {rank} waited {value['seconds']:.1f} s, the timeout is {seconds} s"
        )


@exercise("3.2", "run_schedule", points=1)
def test_what_does_not_fit_is_refused(lab, seed):
    batch = batch_of(seed, SHAPES[:3])
    for what, ranks, plan in [
        ("3 ranks on 2", 2, checks.gpipe_plan(3, 3)),
        ("2 micro-batches of 3", 2, checks.gpipe_plan(2, 2)),
    ]:
        for rank, result in enumerate(lab.on_ranks(ranks).run(drivers.refusals, [plan], batch)):
            got = result.value[0]
            assert got["message"] and got["calls"] == 0, (
                f"rank {rank}: {what} has to be a ValueError before any message"
            )
