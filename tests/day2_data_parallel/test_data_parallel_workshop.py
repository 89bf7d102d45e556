"""Graded tests of lesson 2.4.

What is graded is that a measurement measures: it must see bytes that were planted, on whichever rank, and tell a step
that waits for messages from one that hides them. Real strategies have to come out as theory says; and the
recommendation has to flip exactly where the arithmetic does.
"""

from __future__ import annotations

from itertools import product

import drivers_data_parallel_workshop as drivers
import pytest

from shardlab.grade import exercise

STRATEGIES = ("single GPU", "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3")
GIB = 2**30


def evaluate(lab, name: str, calls: list[tuple]) -> list:
    return lab.on_ranks(1).run(drivers.evaluate, name, calls)[0].value


def check_all_refused(lab, name: str, calls: list[tuple]) -> None:
    for arguments, value in zip(calls, evaluate(lab, name, calls), strict=True):
        assert str(value).startswith("ValueError"), f"{name}{arguments} must raise ValueError, got {value!r}"


def share(total: int, ranks: int) -> int:
    return -(-total // ranks)


def memory(strategy: str, model: tuple, ranks: int) -> int:
    """Of a ("ModelBytes", parameters, gradients, optimizer, activations, layer)."""
    _, parameters, gradients, optimizer, activations, layer = model
    stage = STRATEGIES.index(strategy) - 1
    return (
        (share(parameters, ranks) + 2 * layer if stage >= 3 else parameters)
        + (share(gradients, ranks) + 2 * layer * gradients // parameters if stage >= 2 else gradients)
        + (share(optimizer, ranks) if stage >= 1 else optimizer)
        + activations
    )


def traffic(strategy: str, model: tuple, ranks: int) -> int:
    _, parameters, gradients, *_ = model
    total = {
        "single GPU": 0,
        "DDP": 2 * gradients,
        "ZeRO-1": gradients + parameters,
        "ZeRO-2": gradients + parameters,
        "ZeRO-3": gradients + 2 * parameters,
    }[strategy]
    return total * (ranks - 1) // ranks


def speedup(strategy: str, model: tuple, step_seconds: float, ranks: int, bandwidth: float) -> float:
    if strategy == "single GPU":
        return 1.0
    return ranks * step_seconds / max(step_seconds, traffic(strategy, model, ranks) / bandwidth)


# --- What to expect ---------------------------------------------------------------------------------------------------

MODELS = [  # parameters, gradients, optimizer, activations, layer
    ("ModelBytes", 100, 100, 200, 10, 5),
    ("ModelBytes", 1001, 2002, 6007, 13, 101),  # bf16 with gradients in fp32; nothing divides
    ("ModelBytes", 14 * 10**9, 14 * 10**9, 84 * 10**9, 3 * 10**9, 4 * 10**8),
    ("ModelBytes", 7, 7, 14, 0, 0),
]
EVERYTHING = [(strategy, model, ranks) for strategy in STRATEGIES for model in MODELS for ranks in (1, 2, 3, 4, 7, 64)]
NO_ARGUMENTS = [("ZeRO-4", MODELS[0], 4), ("FSDP", MODELS[0], 4), ("DDP", MODELS[0], 0)]


@exercise("2.4", "expected_memory", points=4)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_expected_memory(lab, strategy):
    calls = [call for call in EVERYTHING if call[0] == strategy]
    for arguments, got in zip(calls, evaluate(lab, "expected_memory", calls), strict=True):
        assert got == memory(*arguments), (
            f"expected_memory{arguments} is {got}, expected {memory(*arguments)}. Which parts does {strategy} split, "
            "which are whole for a moment, and which are never split? Each share rounds up on its own."
        )


@exercise("2.4", "expected_memory", points=1)
def test_expected_memory_refuses_bad_input(lab):
    check_all_refused(lab, "expected_memory", NO_ARGUMENTS)


@exercise("2.4", "expected_traffic", points=3)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_expected_traffic(lab, strategy):
    calls = [call for call in EVERYTHING if call[0] == strategy]
    for arguments, got in zip(calls, evaluate(lab, "expected_traffic", calls), strict=True):
        assert got == traffic(*arguments), (
            f"expected_traffic{arguments} is {got}, expected {traffic(*arguments)}. Count the journeys of gradients "
            "and of parameters: each makes a rank send (N-1)/N of their bytes."
        )


@exercise("2.4", "expected_traffic", points=1)
def test_expected_traffic_refuses_bad_input(lab):
    check_all_refused(lab, "expected_traffic", NO_ARGUMENTS)


@exercise("2.4", "expected_speedup", points=3)
def test_expected_speedup(lab):
    calls = [
        (strategy, model, ("Gpu", "card", GIB, seconds), ranks, bandwidth)
        for strategy, model, ranks in EVERYTHING
        for seconds, bandwidth in ((1e-3, 1e3), (0.5, 1e10), (0.01, 1e12))
    ]
    for arguments, got in zip(calls, evaluate(lab, "expected_speedup", calls), strict=True):
        strategy, model, (*_, seconds), ranks, bandwidth = arguments
        want = speedup(strategy, model, seconds, ranks, bandwidth)
        assert got == pytest.approx(want, rel=1e-9), (
            f"expected_speedup{arguments} is {got}, expected {want:.6g}. A step takes what takes longer, {seconds} s "
            f"of computation or {traffic(strategy, model, ranks) / bandwidth:.6g} s of messages; and all ranks work."
        )
        assert got <= ranks, f"expected_speedup{arguments} is {got!r}: more than {ranks} ranks can bring"


@exercise("2.4", "expected_speedup", points=1)
def test_expected_speedup_refuses_bad_input(lab):
    gpu = ("Gpu", "card", GIB, 1.0)
    refused = [(strategy, model, gpu, ranks, 1e9) for strategy, model, ranks in NO_ARGUMENTS]
    check_all_refused(lab, "expected_speedup", [*refused, ("DDP", MODELS[0], gpu, 2, 0.0)])


# --- What is there ----------------------------------------------------------------------------------------------------

JOURNEYS = {"DDP": 2, "ZeRO-2": 2, "ZeRO-3": 3, "FSDP2": 3}
THEORY = {"DDP": "DDP", "ZeRO-2": "ZeRO-2", "ZeRO-3": "ZeRO-3", "FSDP2": "ZeRO-3"}


def check_against_theory(strategy: str, ranks: int, peak_bytes: int, sent_bytes: int) -> None:
    """Memory and traffic of a strategy of the drivers' model, within 5 % of what the arithmetic says.

    Two layers more are no mistake: gloo's thread may hold the tensors of a message for a moment after its end.
    """
    size = drivers.MODEL_BYTES
    activations = 4 * drivers.LAYERS * drivers.ROWS // ranks * drivers.WIDTH
    model = ("ModelBytes", size, size, 2 * size, activations, drivers.LAYER_BYTES)
    held = memory(THEORY[strategy], model, ranks)
    sent = JOURNEYS[strategy] * size * (ranks - 1) // ranks
    assert 0.95 * held <= peak_bytes <= 1.05 * held + 2 * drivers.LAYER_BYTES, (
        f"{strategy} on {ranks} ranks: {peak_bytes:,} bytes at the peak, by arithmetic {held:,}, off by a factor of "
        f"{peak_bytes / held:.3f}. Every tensor that is alive in the step counts, also those made before; what only "
        "setting up needed does not."
    )
    assert sent_bytes == pytest.approx(sent, rel=1e-3), (
        f"{strategy} on {ranks} ranks: {sent_bytes:,} bytes sent, by arithmetic {sent:,}, off by a factor of "
        f"{sent_bytes / max(sent, 1):.3f}. Count exactly one step, and what this rank sends, not the payload."
    )


@exercise("2.4", "observe_step", points=6)
@pytest.mark.parametrize("ranks", [2, 3])
def test_observed_memory_and_traffic_are_those_of_theory(lab, ranks):
    for result in lab.on_ranks(ranks).run(drivers.observe_all):
        for strategy, seen in result.value.items():
            check_against_theory(strategy, ranks, seen.peak_bytes, seen.sent_bytes)
            assert len(seen.losses) == 3 and seen.losses[0] > seen.losses[1] > seen.losses[2], (
                f"{strategy}: the losses of the first 3 steps should fall, and were {seen.losses}: each step must train"
            )


@exercise("2.4", "observe_step", points=3)
def test_what_was_planted_is_observed(lab, seed):
    extra = 4 * (seed % 1000 + 30_000)  # bytes, different in every grading
    plain, _ = lab.on_ranks(2).run(drivers.observe_planted, {})[0].value
    cases = {  # options: more bytes at the peak, more bytes sent by each of 2 ranks
        "a tensor made in build and never touched again": ({"kept": extra // 4}, extra, 0),
        "a tensor that only building needs": ({"set_up": 3 * extra // 4}, 0, 0),
        "a tensor that each step needs for a moment": ({"temporary": extra // 4}, extra, 0),
        "a message in every step": ({"sent": (extra // 4,)}, extra - 4, extra),
        "a message in the first two steps only": ({"sent": (extra // 4, extra // 4, 0)}, extra - 4, 0),
    }
    for what, (options, held, sent) in cases.items():
        for result in lab.on_ranks(2).run(drivers.observe_planted, options):
            seen, steps = result.value
            more = seen.peak_bytes - plain.peak_bytes
            assert abs(more - held) <= 64, f"{what}: the peak rose by {more} bytes, expected {held}"
            assert seen.sent_bytes == sent, f"{what}: {seen.sent_bytes} bytes sent, expected {sent}"
            assert steps == 3, f"observe_step took {steps} steps, expected 2 to warm up and one to observe"


@exercise("2.4", "observe_step", points=1)
def test_losses_are_those_of_the_steps(lab):
    seen, _ = lab.on_ranks(1).run(drivers.observe_planted, {"losses": (5.0, 4.0, 3.0, 2.0)})[0].value
    assert list(seen.losses) == [5.0, 4.0, 3.0], f"three steps had losses 5, 4 and 3: the observation has {seen.losses}"


@exercise("2.4", "time_steps", points=4)
@pytest.mark.parametrize("ranks", [1, 3])
def test_steps_take_turns_with_free_ones(lab, ranks):
    for result in lab.on_ranks(ranks).run(drivers.time_and_listen, 4):
        real, free, heard = result.value
        assert len(real) == len(free) == 4, f"4 steps of each kind: got {len(real)} and {len(free)} times"
        want = [float(ranks), 1.0] * 4
        assert heard == want, (
            f"an all-reduce of ones on {ranks} ranks came to {heard}, step by step; expected {want}: real messages and "
            "free ones in turns, and no step more"
        )
        assert min(*real, *free) >= 0.01, f"each step slept for 10 ms, and a time of {min(*real, *free)} s was noted"


@exercise("2.4", "time_steps", points=2)
def test_all_ranks_begin_a_step_together(lab):
    late = 0.25
    results = lab.on_ranks(2).run(drivers.time_with_a_late_rank, late)
    for kind, times in zip(("real", "free"), results[0].value, strict=True):
        assert sorted(times)[1] < late / 2, (
            f"rank 1 is busy for {late} s after the message of each step, and rank 0 noted {kind} steps of {times} s: "
            "it waited for rank 1 on the clock. Let all ranks meet before each step, and start the clock after that."
        )
        slow = results[1].value[0 if kind == "real" else 1]
        assert min(slow) >= late, f"rank 1 noted {kind} steps of {slow} s, it was busy for {late} s in each"


@exercise("2.4", "measure_strategy", points=6)
def test_measured_memory_and_traffic_are_those_of_theory(lab):
    ranks = 4
    results = lab.on_ranks(ranks, timeout=60).run(drivers.measure_all)
    losses = {name: [round(loss, 5) for loss in each.losses] for name, each in results[0].value.items()}
    assert losses["DDP"] == losses["FSDP2"] and losses["ZeRO-2"] == losses["ZeRO-3"], (
        f"strategies train alike, their losses are those of the whole batch: got {losses}"
    )
    for strategy, measured in results[0].value.items():
        check_against_theory(strategy, ranks, measured.peak_bytes, measured.traffic)
        assert (measured.ranks, measured.tokens) == (ranks, drivers.ROWS * drivers.WIDTH), (
            f"{measured.ranks} ranks and {measured.tokens} tokens, expected {ranks} and rows times tokens per row"
        )
        assert 0 <= measured.communication_share <= 1, f"a share is between 0 and 1: {measured.communication_share}"


@exercise("2.4", "measure_strategy", points=3)
@pytest.mark.parametrize("heavy", [0, 2])
def test_the_fullest_rank_counts_and_all_ranks_know(lab, seed, heavy):
    extra = 4 * (seed % 1000 + 30_000)
    options = [
        {"kept": extra // 4 if rank == heavy else 0, "losses": (float(rank + 1), 0.0), "sent": (300,)}
        for rank in range(3)
    ]
    results = [result.value for result in lab.on_ranks(3).run(drivers.measure_planted, per_rank=options)]
    assert all(result == results[0] for result in results), f"every rank returns the same, got {results}"
    bare = lab.on_ranks(3).run(drivers.measure_planted, {"sent": (300,)})[0].value
    more = results[0].peak_bytes - bare.peak_bytes
    assert abs(more - extra) <= 64, f"rank {heavy} holds {extra} bytes more, the measured peak is {more} higher"
    assert results[0].traffic == 1600, f"all-reduce of 1200 bytes on 3 ranks: each sends 1600, got {results[0].traffic}"
    assert list(results[0].losses) == [2.0, 0.0, 0.0], (
        f"losses of 1, 2 and 3 on three ranks, then 0: the batch's are 2, 0 and 0, got {results[0].losses}"
    )


@exercise("2.4", "measure_strategy", points=3)
@pytest.mark.parametrize("slow", [0, 1])
def test_a_step_is_over_when_the_slowest_rank_is(lab, slow):
    real = [[0.25, 0.5, 4.0], [1.0, 0.125, 0.125]]  # by step: 1, 0.5 and 4 s
    free = [[0.25, 0.375, 1.0], [0.5, 0.125, 0.0625]]  # 0.5, 0.375 and 1 s: saves 1/2, 1/4 and 3/4
    times = list(zip(real, free, [700, 300], strict=True))[:: 1 if slow == 0 else -1]
    for result in lab.on_ranks(2).run(drivers.measure_given_times, per_rank=times):
        assert result.value.traffic == 700, (
            f"ranks send {times[0][2]} and {times[1][2]} bytes: the traffic is that of the one that sends most, got "
            f"{result.value.traffic}"
        )
        speed, communication = result.value.tokens_per_second, result.value.communication_share
        where = f"60 tokens; real steps of {times[0][0]} s on rank 0 and {times[1][0]} s on rank 1"
        assert speed == pytest.approx(60.0), (
            f"{where}: {speed:g} tokens/s, expected 60. All tokens of the batch count once; a step takes as long as "
            "its slowest rank, here 1, 0.5 and 4 s, and the median step counts."
        )
        assert communication == pytest.approx(0.5), (
            f"{where}; free ones of {times[0][1]} and {times[1][1]} s: a communication share of {communication:g}, "
            "expected 0.5. The slowest ranks' pairs save 1/2, 1/4 and 3/4 of a step."
        )
    slower = [([0.5], [0.75], 0)] * 2  # noise: without communication it took longer
    share = lab.on_ranks(2).run(drivers.measure_given_times, per_rank=slower)[0].value.communication_share
    assert share == 0, f"free messages that save nothing are a share of 0, got {share}"


@exercise("2.4", "measure_strategy", points=4)
@pytest.mark.parametrize(
    ("computing", "sending", "overlap", "least", "most"),
    [
        pytest.param(0.06, 0.0005, False, 0.0, 0.4, id="hardly any communication"),
        pytest.param(0.03, 0.2, False, 0.6, 0.97, id="mostly communication"),
        pytest.param(0.25, 0.1, True, 0.0, 0.25, id="hidden communication"),
    ],
)
def test_communication_share(lab, computing, sending, overlap, least, most):
    measured = lab.on_ranks(2).run(drivers.measure_over_a_link, computing, sending, overlap)[0].value
    got = measured.communication_share
    assert least <= got <= most, (
        f"a step of {computing} s and a message of {sending} s, {'together' if overlap else 'one after the other'}: a "
        f"communication share of {got:.2f}, expected {least} to {most}. The share is what a step is shorter by when "
        "messages are free, over what it takes."
    )


@exercise("2.4", "measure_strategy", points=1)
def test_measuring_refuses_bad_input(lab):
    calls = [([4, 5], 0), ([5, 4], 1), ([8], 1), ([0, 4], 1)]
    for result in lab.on_ranks(2).run(drivers.refused_measurements, calls):
        for call, error in zip(calls, result.value, strict=True):
            assert error.startswith("ValueError"), (
                f"rank {result.rank}: a batch of shape {call[0]} and {call[1]} steps on 2 ranks must raise ValueError, "
                f"got {error or 'none'}"
            )
        assert not result.traffic.calls, f"rank {result.rank} called {result.traffic.calls[0]} before it refused"


# --- What did more ranks bring? ---------------------------------------------------------------------------------------


def measurements(speeds: dict[int, float], tokens: dict[int, int]) -> list[tuple]:
    return [("Measurement", ranks, tokens[ranks], [1.0], speed, 1, 1, 0.0) for ranks, speed in speeds.items()]


@exercise("2.4", "scaling_table", points=4)
@pytest.mark.parametrize("kind", ["strong", "weak"])
@pytest.mark.parametrize("order", [(1, 2, 4), (8, 2, 3), (4, 1), (5,)])
def test_scaling_table(lab, seed, kind, order):
    if kind == "weak" and len(order) == 1:
        kind = "strong"  # a single one counts as strong
    speeds = {ranks: 100.0 * ranks**0.8 + seed % 7 for ranks in order}
    tokens = {ranks: 1000 * (ranks if kind == "weak" else 1) for ranks in order}
    rows = evaluate(lab, "scaling_table", [(measurements(speeds, tokens),)])[0]
    first = min(order)
    assert [row.ranks for row in rows] == sorted(order), f"fewest ranks first: got {[row.ranks for row in rows]}"
    for row in rows:
        want = speeds[row.ranks] / speeds[first]
        where = f"{speeds} tokens/s by ranks, {tokens} tokens per step: at {row.ranks} ranks"
        assert row.kind == kind, f"{where} it says {row.kind} scaling, this is {kind}"
        assert row.tokens_per_second == speeds[row.ranks], f"{where} tokens/s are {row.tokens_per_second}"
        assert row.speedup == pytest.approx(want), (
            f"{where} the speed-up is {row.speedup}, expected {want:.4g}: against {first} ranks, the fewest"
        )
        efficiency = want * first / row.ranks
        assert row.efficiency == pytest.approx(efficiency), (
            f"{where} the efficiency is {row.efficiency}, expected {efficiency:.4g}: of {row.ranks / first:g} at best"
        )


@exercise("2.4", "scaling_table", points=1)
def test_scaling_table_refuses_what_is_no_scaling(lab):
    twice = measurements({2: 10.0}, {2: 8}) * 2
    mixed = measurements({1: 10.0, 2: 20.0, 4: 30.0}, {1: 8, 2: 8, 4: 16})
    check_all_refused(lab, "scaling_table", [([],), (twice,), (mixed,)])


# --- Which strategy to take? ------------------------------------------------------------------------------------------


@exercise("2.4", "fewest_ranks", points=3)
def test_fewest_ranks(lab):
    calls, want = [], []
    for model, ranks in product(MODELS, (1, 2, 3, 5, 100, 1023)):
        need = memory("ZeRO-3", model, ranks)
        calls += [(model, ("Gpu", "card", room, 1.0)) for room in (need, need - 1)]
        enough = next(n for n in range(1, ranks + 1) if memory("ZeRO-3", model, n) <= need)
        more = [n for n in range(ranks, 20_000) if memory("ZeRO-3", model, n) < need]
        want += [enough, more[0] if more else None]
    always = memory("ZeRO-3", MODELS[2], 10**12) - 3  # activations and layers; shards of one byte are left
    calls += [(MODELS[2], ("Gpu", "card", room, 1.0)) for room in (always, always + 2, always + 3, always + 1000)]
    want += [None, None, 84 * 10**9, None]
    for arguments, got, expected in zip(calls, evaluate(lab, "fewest_ranks", calls), want, strict=True):
        if arguments[1][2] == always + 1000:
            held = [memory("ZeRO-3", MODELS[2], n) - always for n in (got, got - 1)]
            assert held[0] <= 1000 < held[1], f"fewest_ranks{arguments} is {got}: it is not the first that fits"
        else:
            assert got == expected, f"fewest_ranks{arguments} is {got}, expected {expected}"


CARD = "GTX 9000"
MODEL = ("ModelBytes", 14 * GIB, 14 * GIB, 84 * GIB, 3 * GIB, GIB // 2)
WIDE = ("ModelBytes", 14 * GIB, 28 * GIB, 84 * GIB, 3 * GIB, GIB // 2)  # gradients in fp32
FAST = 1e15


def choices(lab, calls: list[tuple]) -> list:
    """Of (model, memory of the GPU, seconds of a step, ranks, bandwidth)."""
    made = [(model, ("Gpu", CARD, room, seconds), *rest) for model, room, seconds, *rest in calls]
    return evaluate(lab, "recommend", made)


@exercise("2.4", "recommend", points=5)
@pytest.mark.parametrize("ranks", [2, 3, 8, 64])
def test_the_recommendation_flips_where_memory_says(lab, ranks):
    needs = {strategy: memory(strategy, MODEL, ranks) for strategy in STRATEGIES[1:]}
    calls, want = [], []
    for need in needs.values():
        for room in (need, need - 1):
            fitting = [name for name, bytes_ in needs.items() if bytes_ <= room]
            calls.append((MODEL, room, 1.0, ranks, FAST))
            want.append(fitting[0] if fitting else "does not fit")
    for call, choice, expected in zip(calls, choices(lab, calls), want, strict=True):
        assert choice.strategy == expected, (
            f"{ranks} ranks with {call[1]:,} bytes each and a fast link: {choice.strategy}, expected {expected}. "
            f"Needs: {needs}. A strategy fits if it needs no more than there is; of those the simplest is right."
        )


@exercise("2.4", "recommend", points=4)
def test_the_recommendation_flips_where_traffic_says(lab):
    seconds, ranks, plenty = 0.5, 8, 500 * GIB
    even = traffic("DDP", MODEL, ranks) / (ranks * seconds)  # bytes/s at which 8 ranks are as fast as one
    wide = {name: traffic(name, WIDE, ranks) / seconds for name in STRATEGIES[1:]}  # at which messages just hide
    cases = [
        ((MODEL, plenty, seconds, ranks, even * 0.999), "single GPU", "with fewer ranks there is less to send: none"),
        ((MODEL, plenty, seconds, ranks, even * 1.001), "DDP", "8 ranks are a little faster than one"),
        ((MODEL, plenty, seconds, 1, FAST), "single GPU", "there is one rank"),
        ((WIDE, plenty, seconds, ranks, wide["DDP"] * 1.001), "DDP", "all messages hide"),
        ((WIDE, plenty, seconds, ranks, wide["DDP"] * 0.999), "ZeRO-1", "its parameters are smaller than gradients"),
        ((WIDE, plenty, seconds, ranks, wide["ZeRO-1"] * 0.9), "ZeRO-1", "it sends least, and ZeRO-2 no less"),
        ((MODEL, memory("ZeRO-3", MODEL, ranks), seconds, ranks, 1.0), "ZeRO-3", "nothing else fits, slow or not"),
        ((MODEL, memory("ZeRO-1", MODEL, ranks), seconds, ranks, 1.0), "ZeRO-1", "ZeRO-2 and 3 send no less"),
    ]
    for (call, expected, why), choice in zip(cases, choices(lab, [call for call, *_ in cases]), strict=True):
        assert choice.strategy == expected, (
            f"ranks {call[3]}, a step of {call[2]} s, {call[4]:.4g} bytes/s, parameters and gradients of {call[0][1]} "
            f"and {call[0][2]} bytes: {choice.strategy}, expected {expected}, for {why}"
        )


def in_units(num_bytes: float) -> str:
    return f"{num_bytes / GIB:,.1f} GiB" if num_bytes >= GIB else f"{num_bytes / 2**20:,.1f} MiB"


@exercise("2.4", "recommend", points=3)
def test_the_recommendation_explains_itself(lab):
    ranks, seconds = 8, 0.5
    room = memory("ZeRO-2", MODEL, ranks)
    slow = traffic("ZeRO-2", MODEL, ranks) / (2.5 * seconds)  # messages take 2.5 times as long as a step computes
    split, alone, nothing, never = choices(
        lab,
        [
            (MODEL, room, seconds, ranks, slow),
            (MODEL, 500 * GIB, seconds, ranks, traffic("DDP", MODEL, ranks) / (16 * seconds)),
            (MODEL, 11 * GIB, seconds, ranks, FAST),
            (MODEL, 4 * GIB, seconds, ranks, FAST),
        ],
    )
    enough = next(n for n in range(1, 1000) if memory("ZeRO-3", MODEL, n) <= 11 * GIB)
    said = {
        "ZeRO-2, for memory": (split, ["ZeRO-2", in_units(room), "ZeRO-1", "DDP", CARD]),
        "ZeRO-2, what the simpler ones need": (split, [in_units(memory(s, MODEL, ranks)) for s in ("DDP", "ZeRO-1")]),
        "ZeRO-2, its time": (split, [in_units(traffic("ZeRO-2", MODEL, ranks)), "500.0 ms", "1,250.0 ms", "3.2x"]),
        "a single GPU, for a slow link": (alone, ["single GPU", in_units(memory("DDP", MODEL, 1)), "DDP", "0.5x"]),
        "nothing fits": (nothing, [*(in_units(memory(s, MODEL, ranks)) for s in STRATEGIES[1:]), f"{enough} ranks"]),
        "nothing ever fits": (never, ["no number of ranks", "5.0 GiB", "4.0 GiB"]),
    }
    for what, (choice, words) in said.items():
        missing = [word for word in words if word not in choice.reason]
        assert not missing, f"{what}: the reason does not say {missing}. It says: {choice.reason!r}"
    assert (split.strategy, alone.strategy) == ("ZeRO-2", "single GPU")
    assert nothing.strategy == never.strategy == "does not fit"
    assert all(choice.reason.strip().endswith(".") for choice in (split, alone, nothing, never)), "sentences, please"


@exercise("2.4", "recommend", points=1)
def test_recommend_refuses_bad_input(lab):
    gpu = ("Gpu", CARD, 80 * GIB, 1.0)
    check_all_refused(lab, "recommend", [(MODEL, gpu, 0, 1e9), (MODEL, gpu, 8, 0.0), (MODEL, gpu, 8, -1.0)])
