"""Graded tests of lesson 2.1.

Right gradients alone do not earn the points: an all-reduce of everything after backward has them too. What is graded is
what travels (exactly the gradients' bytes, one message per bucket), when it leaves (before backward is over), and that
training ends where one process would.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence

import drivers_ddp as drivers
import pytest
import torch
from torch import Tensor, nn

from shardlab.grade import exercise
from shardlab.observe import Traffic

MIB = 2**20


# --- The sampler ------------------------------------------------------------------------------------------------------

SIZES = [(10, 1), (10, 2), (10, 3), (7, 5), (3, 4), (0, 2)]  # items, ranks


@exercise("2.1", "ShardedSampler", points=2)
@pytest.mark.parametrize("shuffle", [False, True])
def test_every_item_goes_to_one_rank_once(lab, seed, shuffle):
    cases = [({"length": length, "shuffle": shuffle, "seed": seed}, ranks, [0]) for length, ranks in SIZES]
    dealt = lab.on_ranks(1).run(drivers.deal, cases)[0].value
    for (length, ranks), (shares,) in zip(SIZES, dealt, strict=True):
        assert sorted(itertools.chain(*shares)) == list(range(length)), (
            f"{length} items on {ranks} ranks were dealt out as {shares}. Every item belongs to exactly one rank: none "
            "twice (torch's DistributedSampler repeats some), none left out (that is drop_last)."
        )
        sizes = [len(share) for share in shares]
        assert max(sizes) - min(sizes) <= 1, f"the ranks got {sizes} items: no rank may have two more than another"
        assert shuffle or shares == [list(range(rank, length, ranks)) for rank in range(ranks)], (
            f"not shuffled, rank r gets items r, r + {ranks}, ...: got {shares}"
        )


@exercise("2.1", "ShardedSampler", points=1)
def test_drop_last_gives_all_ranks_the_same_number(lab, seed):
    cases = [({"length": length, "seed": seed, "drop_last": True}, ranks, [0]) for length, ranks in SIZES]
    dealt = lab.on_ranks(1).run(drivers.deal, cases)[0].value
    for (length, ranks), (shares,) in zip(SIZES, dealt, strict=True):
        assert [len(share) for share in shares] == [length // ranks] * ranks, (
            f"with drop_last each of {ranks} ranks gets {length // ranks} of {length} items: got {shares}"
        )
        items = list(itertools.chain(*shares))
        assert len(set(items)) == len(items), f"an item was dealt out twice: {shares}"


@exercise("2.1", "ShardedSampler.set_epoch", points=2)
def test_set_epoch_changes_the_order(lab, seed):
    options, ranks = {"length": 42, "shuffle": True, "seed": seed % 1000}, 3
    other_seed = options | {"seed": seed % 1000 + 7}
    seen, (other,) = (
        lab.on_ranks(1).run(drivers.deal, [(options, ranks, [0, 1, 2, 1]), (other_seed, ranks, [0])])[0].value
    )
    for epoch, shares in enumerate(seen[:3]):
        assert sorted(itertools.chain(*shares)) == list(range(42)), (
            f"in epoch {epoch} some items were seen twice and others never: all ranks must cut up the same order"
        )
    first, second, third, second_again = seen
    assert first != second != third != first, (
        "set_epoch must change the order: two epochs gave every rank the same items"
    )
    assert second_again == second, (
        "the order must depend on seed and epoch alone: epoch 1 came out differently later on"
    )
    assert other != first, "another seed must give another order"


@exercise("2.1", "ShardedSampler.set_epoch", points=1)
def test_without_set_epoch_the_order_stays(lab):
    first, second = lab.on_ranks(1).run(drivers.without_set_epoch, 20)[0].value
    assert first == second, "only set_epoch changes the order: a new pass over the same epoch starts it again"


@exercise("2.1", "ShardedSampler.load_state_dict", points=3)
@pytest.mark.parametrize("drop_last", [False, True])
def test_resume_in_the_middle_of_an_epoch(lab, seed, drop_last):
    length = 23
    options = {"length": length, "shuffle": True, "seed": seed, "drop_last": drop_last}
    cases = [(3, drawn, new_ranks) for drawn in (0, 4, 7) for new_ranks in (3, 2, 5)]
    unbroken = lab.on_ranks(1).run(drivers.deal, [(options, ranks, [2, 3]) for ranks in (2, 3, 5)])[0].value
    whole = dict(zip((2, 3, 5), unbroken, strict=True))
    interrupted = lab.on_ranks(1).run(drivers.interrupt, options, cases, 2)[0].value
    for (ranks, drawn, new_ranks), got in zip(cases, interrupted, strict=True):
        json.dumps(got["state"])  # plain data, as a checkpoint wants it
        assert got["epoch"] == 2, f"the epoch is part of the state: saved in epoch 2, loaded in epoch {got['epoch']}"
        rest = [share[drawn:] for share in whole[ranks][0]]
        assert new_ranks != ranks or got["after"] == rest, (
            f"after {drawn} items the ranks had {rest} left, and went on with {got['after']}. The usual loop calls "
            "set_epoch with the current epoch right after loading: that must not start the epoch again."
        )
        items = sorted(itertools.chain(*got["before"], *got["after"]))
        left_out = (length - ranks * drawn) % new_ranks if drop_last else 0
        assert len(items) == len(set(items)) == length - left_out, (
            f"{drawn} items on each of {ranks} ranks, then the rest on {new_ranks} ranks: {items} of {length} were "
            "seen. Count what all ranks have drawn, and go on from there."
        )
        assert got["next"] == whole[new_ranks][1], "the epoch after a resumed one must be whole, and like any other"


@exercise("2.1", "ShardedSampler.load_state_dict", points=1)
def test_resume_after_a_resume(lab):
    seen = lab.on_ranks(1).run(drivers.resume_twice, 20, [5, 4])[0].value
    assert sorted(seen) == list(range(20)), (
        f"5 items, saved and loaded, 4 more, saved and loaded, the rest: {seen}. The offset goes on counting after a "
        "resume; it does not start again at 0."
    )


@exercise("2.1", "ShardedSampler.load_state_dict", points=1)
def test_a_state_of_another_order_is_refused(lab):
    options = {"length": 10, "shuffle": True, "seed": 0}
    changes = [{"length": 11}, {"seed": 1}, {"shuffle": False}]
    messages = (
        lab.on_ranks(1).run(drivers.load_foreign_states, options, [options | change for change in changes])[0].value
    )
    for (name,), message in zip(changes, messages, strict=True):
        assert name in message, (
            f"a state with another {name} belongs to another order of items: load_state_dict must raise a ValueError "
            f"that names {name}, got {message or 'no error'!r}"
        )


# --- Learning rates ---------------------------------------------------------------------------------------------------


@exercise("2.1", "scaled_learning_rate", points=1)
@pytest.mark.parametrize(("rule", "expected"), [("linear", lambda k: k), ("sqrt", math.sqrt)], ids=["linear", "sqrt"])
def test_the_rate_grows_with_the_batch(lab, seed, rule, expected):
    base, base_batch = 0.01 + seed % 100 / 1000, 64
    factors = [1, 2, 8, 0.25, 3]
    arguments = [
        {"base": base, "batch": round(base_batch * factor), "base_batch": base_batch, "rule": rule}
        for factor in factors
    ]
    rates = lab.on_ranks(1).run(drivers.call_each, "scaled_learning_rate", arguments)[0].value
    for factor, rate in zip(factors, rates, strict=True):
        assert rate == pytest.approx(base * expected(factor)), (
            f"a batch {factor} times as large, {rule} rule: base {base} becomes {base * expected(factor)}, got {rate}"
        )


@exercise("2.1", "scaled_learning_rate", points=1)
@pytest.mark.parametrize(
    ("base", "batch", "base_batch", "rule"),
    [(0.0, 8, 8, "linear"), (0.1, 8, -8, "sqrt"), (0.1, 8, 8, "cubic")],
)
def test_no_rate_for_bad_input(lab, base, batch, base_batch, rule):
    lab.expect_error(ValueError, "scaled_learning_rate", base, batch, base_batch, rule)


def expected_rate(step: int, peak: float, warmup: int, total: int, floor: float) -> float:
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / (total - warmup)) if total > warmup else 1.0
    return floor + (peak - floor) * 0.5 * (1 + math.cos(math.pi * progress))


@exercise("2.1", "warmup_cosine", points=2)
@pytest.mark.parametrize(("warmup", "total", "floor"), [(5, 20, 0.0), (0, 7, 0.01), (4, 4, 0.1)])
def test_warm_up_then_cosine(lab, seed, warmup, total, floor):
    peak = 0.2 + seed % 50 / 100
    settings = {"peak": peak, "warmup_steps": warmup, "total_steps": total, "floor": floor}
    steps = range(total + 3)
    rates = (
        lab.on_ranks(1).run(drivers.call_each, "warmup_cosine", [settings | {"step": step} for step in steps])[0].value
    )
    for step, rate in zip(steps, rates, strict=True):
        expected = expected_rate(step, peak, warmup, total, floor)
        assert rate == pytest.approx(expected, abs=1e-12), (
            f"step {step} of {total}, {warmup} of them warm-up, peak {peak}, floor {floor}: {expected}, got {rate}. "
            "Step 0 is an update too, so the rise starts above 0."
        )


@exercise("2.1", "warmup_cosine", points=1)
@pytest.mark.parametrize(("step", "warmup", "total"), [(-1, 2, 10), (0, 11, 10), (0, 0, 0)])
def test_no_schedule_for_bad_input(lab, step, warmup, total):
    lab.expect_error(ValueError, "warmup_cosine", step, peak=1.0, warmup_steps=warmup, total_steps=total)


# --- Optimisers: held against the papers' formulas in float64 ---------------------------------------------------------


@exercise("2.1", "trust_ratio", points=1)
def test_trust_ratio(lab):
    cases = {(6.0, 2.0): 3.0, (0.0, 2.0): 1.0, (6.0, 0.0): 1.0, (0.0, 0.0): 1.0}
    arguments = [{"weight_norm": torch.tensor(w), "update_norm": torch.tensor(u)} for w, u in cases]
    ratios = lab.on_ranks(1).run(drivers.call_each, "trust_ratio", arguments)[0].value
    for ((weight, update), expected), ratio in zip(cases.items(), ratios, strict=True):
        assert ratio.shape == () and ratio.item() == expected, (
            f"norms {weight} and {update}: the ratio is {expected}, got {ratio}. Without a weight or an update there "
            "is nothing to compare: 1."
        )


def lars_by_the_paper(w: Tensor, g: Tensor, state: dict, hyper: dict) -> Tensor:
    """You, Gitman & Ginsburg 2017, algorithm 1, one layer, one step."""
    decay = hyper["weight_decay"]
    denominator = g.norm() + decay * w.norm()
    ratio = w.norm() / denominator if w.norm() > 0 and denominator > 0 else 1.0
    local = hyper["trust_coefficient"] * ratio
    state["v"] = hyper["momentum"] * state.get("v", 0) + hyper["lr"] * local * (g + decay * w)
    return w - state["v"]


def lamb_by_the_paper(w: Tensor, g: Tensor, state: dict, hyper: dict) -> Tensor:
    """You et al. 2020, algorithm 2, one layer, one step, phi the identity."""
    beta1, beta2 = hyper["betas"]
    state["t"] = state.get("t", 0) + 1
    state["m"] = beta1 * state.get("m", 0) + (1 - beta1) * g
    state["v"] = beta2 * state.get("v", 0) + (1 - beta2) * g * g
    m, v = state["m"] / (1 - beta1 ** state["t"]), state["v"] / (1 - beta2 ** state["t"])
    r = m / (v.sqrt() + hyper["eps"]) + hyper["weight_decay"] * w
    ratio = w.norm() / r.norm() if w.norm() > 0 and r.norm() > 0 else 1.0
    return w - hyper["lr"] * ratio * r


PAPERS = {"LARS": lars_by_the_paper, "LAMB": lamb_by_the_paper}
LARS_SETTINGS = {"lr": 2.0, "momentum": 0.9, "weight_decay": 0.05, "trust_coefficient": 0.02}
LAMB_SETTINGS = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-3, "weight_decay": 0.1}


def check_optimizer(lab, name: str, seed: int, settings: dict, rates: Sequence[float], look_at: str) -> None:
    """Some steps on three layers: one large and one small, one that begins at zero and has no gradient at first."""
    generator = torch.Generator().manual_seed(seed)
    weights = [torch.randn(4, 3, generator=generator), 0.01 * torch.randn(5, generator=generator), torch.zeros(3)]
    steps: list[list[Tensor | None]] = [
        [torch.randn(w.shape, generator=generator) * 10**step for w in weights] for step in range(len(rates))
    ]
    steps[0][2] = None
    hypers = [settings | {"lr": rate} for rate in rates]
    got = lab.on_ranks(1).run(drivers.optimize, name, weights, steps, hypers)[0].value
    for layer, weight in enumerate(weights):
        expected, state = weight.double(), {}
        for gradients, hyper in zip(steps, hypers, strict=True):
            if gradients[layer] is not None:
                expected = PAPERS[name](expected, gradients[layer].double(), state, hyper)
        assert_close(got[layer], expected.float(), f"{name}, layer {layer} after {len(rates)} steps. {look_at}")


@exercise("2.1", "LARS", points=1)
def test_lars_first_step(lab, seed):
    check_optimizer(lab, "LARS", seed, LARS_SETTINGS | {"weight_decay": 0.0}, [2.0], "Look at the ratio of the norms.")


@exercise("2.1", "LARS", points=2)
def test_lars_with_weight_decay_and_a_schedule(lab, seed):
    look_at = "Weight decay belongs into the update and into the denominator; the learning rate inside the momentum."
    check_optimizer(lab, "LARS", seed, LARS_SETTINGS, [2.0, 1.0, 0.1], look_at)


@exercise("2.1", "LAMB", points=1)
def test_lamb_first_step(lab, seed):
    look_at = "After one step both moments are far too small: divide by 1 - beta^t."
    check_optimizer(lab, "LAMB", seed, LAMB_SETTINGS | {"weight_decay": 0.0}, [0.05], look_at)


@exercise("2.1", "LAMB", points=2)
def test_lamb_with_weight_decay_and_a_schedule(lab, seed):
    look_at = "Weight decay is added to the direction before its norm is taken; t counts this layer's own steps."
    check_optimizer(lab, "LAMB", seed, LAMB_SETTINGS, [0.05, 0.02, 0.1], look_at)


@exercise("2.1", "LAMB", points=1)
def test_step_calls_a_closure(lab):
    loss, weight = lab.on_ranks(1).run(drivers.step_with_closure, "LAMB")[0].value
    assert loss == 4.0 and weight == 1.0, (
        "w = 2, loss w^2, lr 0.5: step(closure) returns the loss 4.0 and moves w by 0.5 * ||w|| to 1.0, "
        f"got {loss} and {weight}"
    )


# --- Buckets ----------------------------------------------------------------------------------------------------------

Shapes = list[tuple[int, str]]  # numel, dtype
ITEM_BYTES = {"float32": 4, "float64": 8, "bfloat16": 2}


def expected_buckets(shapes: Shapes, limit: float) -> list[list[int]]:
    """The rule in the docstring of `assign_buckets`, on positions."""
    closed, still_open = [], {}
    for index in reversed(range(len(shapes))):
        _, dtype = shapes[index]
        bucket = still_open.setdefault(dtype, [])
        bucket.append(index)
        if sum(shapes[member][0] for member in bucket) * ITEM_BYTES[dtype] >= limit:
            closed.append(still_open.pop(dtype))
    return closed + list(still_open.values())


FOUR = [(10, "float32")] * 4
BUCKET_CASES = {
    "sizes": [(FOUR, 80), (FOUR, 50), (FOUR, 1), (FOUR, 1e9)],
    "odd": [([(3, "float32"), (1000, "float32"), *FOUR], 24), ([(0, "float32"), (5, "float32")], 12.5), ([], 100)],
    "dtypes": [([(10, dtype) for dtype in ("float32", "bfloat16", "float32", "float64", "bfloat16")], 80)],
}


@exercise("2.1", "assign_buckets", points=3)
@pytest.mark.parametrize("cases", BUCKET_CASES.values(), ids=BUCKET_CASES)
def test_buckets(lab, cases):
    found = lab.on_ranks(1).run(drivers.bucket_indices, cases)[0].value
    for (shapes, limit), got in zip(cases, found, strict=True):
        expected = expected_buckets(shapes, limit)
        assert got == expected, (
            f"tensors of (elements, dtype) {shapes}, {limit} bytes or more close a bucket: expected {expected}, got "
            f"{got} (positions in the list). The last tensor comes first, one bucket holds one dtype, no tensor is cut."
        )


# --- Same as one process ----------------------------------------------------------------------------------------------


def token_batches(seed: int, ranks: int, steps: int) -> list[list[Tensor]]:
    """Batch of each rank and step: tokens [1, T] with another T for each."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [[2 + (3 * rank + 5 * step) % 13 for step in range(steps)] for rank in range(ranks)]
    return [
        [torch.randint(drivers.CONFIG.vocab, (1, length), generator=generator) for length in row] for row in lengths
    ]


def mean_tokens(batches: Sequence[Sequence[Tensor]]) -> list[float]:
    """Predicted tokens per rank, of every step."""
    return [sum(tokens.shape[1] - 1 for tokens in step) / len(step) for step in zip(*batches, strict=True)]


def train_alone(batches: Sequence[Sequence[Tensor]], seed: int) -> drivers.State:
    """What one process gets from the union of all ranks' batches."""
    model = drivers.language_model(seed)
    optimizer = drivers.sgd(model)
    for step in zip(*batches, strict=True):
        optimizer.zero_grad()
        total = sum(tokens.shape[1] - 1 for tokens in step)
        (sum(drivers.summed_token_loss(model, tokens) for tokens in step) / total).backward()
        optimizer.step()
    return drivers.state_of(model)


def assert_close(got: Tensor, expected: Tensor, what: str) -> None:
    """Within 1e-5 of the largest element."""
    assert got.shape == expected.shape, f"{what}\nexpected shape {list(expected.shape)}, got {list(got.shape)}"
    error = (got - expected).abs().max().item() if got.numel() else 0.0
    allowed = 1e-5 * expected.abs().max().item() if got.numel() else 0.0
    assert error <= allowed, f"{what}\nexpected {expected.tolist()}\ngot      {got.tolist()}\noff by {error:.2e}"


def assert_state(got: drivers.State, expected: drivers.State, what: str) -> None:
    assert got.keys() == expected.keys(), f"{what}: names {list(got)} instead of {list(expected)}"
    for name, tensor in expected.items():
        error = (got[name] - tensor).abs().max().item() / max(tensor.abs().max().item(), 1e-12)
        assert error <= 1e-5, f"{what}: {name} is off by {error:.1e} of its largest element, 1e-5 is allowed"


def assert_bit_equal(states: Sequence[drivers.State], what: str) -> None:
    for rank, state in enumerate(states):
        for name, tensor in state.items():
            assert torch.equal(tensor, states[0][name]), (
                f"{what}: {name} of rank {rank} is not that of rank 0, bit for bit (largest difference "
                f"{(tensor - states[0][name]).abs().max().item():.1e}). Ranks that drift apart train two models."
            )


@exercise("2.1", "DataParallel", points=5)
@pytest.mark.parametrize(("ranks", "bucket_mb"), [(1, 25), (2, 0.002), (3, 0.004), (4, 25), (5, 0.001)])
def test_same_as_one_process(lab, seed, ranks, bucket_mb):
    batches = token_batches(seed, ranks, steps=3)
    results = lab.on_ranks(ranks).run(drivers.train, mean_tokens(batches), None, bucket_mb, per_rank=batches)
    assert_bit_equal([result.value for result in results], "after 3 steps")
    assert_state(
        results[0].value,
        train_alone(batches, seed=0),
        f"3 steps on {ranks} ranks against one process on the union of their batches, starting from rank 0's weights",
    )


@exercise("2.1", "DataParallel", points=2)
def test_two_groups_train_two_models(lab, seed):
    groups = [[0, 3], [1, 2, 4]]
    batches = token_batches(seed, 5, steps=3)
    means = [mean_tokens([batches[rank] for rank in group]) for group in groups]
    own = [next(mean for mean, group in zip(means, groups, strict=True) if rank in group) for rank in range(5)]
    results = lab.on_ranks(5).run(drivers.train_in_groups, groups, per_rank=list(zip(batches, own, strict=True)))
    for group in groups:
        assert_bit_equal([results[rank].value for rank in group], f"ranks {group}")
        expected = train_alone([batches[rank] for rank in group], seed=group[0])
        assert_state(results[group[0]].value, expected, f"the group of ranks {group}, from the weights of its rank 0")
        for rank in group:
            strangers = [call for call in results[rank].traffic.calls if list(call.ranks) != group]
            assert not strangers, (
                f"rank {rank} is in the group {group}, it called {strangers[0]} on {strangers[0].ranks}"
            )


# --- What travels, and when -------------------------------------------------------------------------------------------


def trained_shapes() -> Shapes:
    """Parameters of `language_model` that get a gradient, the tied one once."""
    return [(p.numel(), "float32") for p in drivers.language_model(seed=0).parameters() if p.requires_grad]


@exercise("2.1", "DataParallel", points=4)
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_one_all_reduce_per_bucket_and_no_other_byte(lab, seed, ranks):
    limits, steps, shapes = [1, 2048, 25 * MIB], 2, trained_shapes()
    tokens = [row[0] for row in token_batches(seed, ranks, steps=1)]
    results = lab.on_ranks(ranks).run(drivers.observe_steps, [limit / MIB for limit in limits], steps, per_rank=tokens)
    for rank, result in enumerate(results):
        for limit, data in zip(limits, result.value, strict=True):
            sizes = [sum(shapes[i][0] * 4 for i in bucket) for bucket in expected_buckets(shapes, limit)]
            found = [(call.op, call.payload_bytes) for call in Traffic.from_data(data).calls]
            assert found == [("all_reduce", size) for size in sizes] * steps, (
                f"rank {rank}, buckets of {limit} bytes: {sum(sizes)} bytes of gradients travel as {len(sizes)} "
                f"all-reduces of {sizes} bytes in each of {steps} steps, got {found}. Frozen parameters stay, a "
                "tied one once."
            )


@exercise("2.1", "DataParallel", points=4)
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_buckets_leave_during_backward(lab, ranks):
    layers, width = 6, 8
    layer_bytes = 4 * width * width
    limits = [layer_bytes * per_bucket for per_bucket in (1, 2, 4)]
    results = lab.on_ranks(ranks).run(drivers.observe_order, layers, width, [limit / MIB for limit in limits])
    for rank, result in enumerate(results):
        for limit, data in zip(limits, result.value, strict=True):
            expected = []
            for bucket in expected_buckets([(width * width, "float32")] * layers, limit):
                expected += [f"gradient {index}" for index in bucket] + ["all_reduce"]
            traffic = Traffic.from_data(data)
            order = [getattr(event, "name", None) or event.op for event in traffic.events]
            assert order == expected, (
                f"rank {rank}, {layers} equal layers, {limit // layer_bytes} to a bucket. It leaves when its last "
                f"gradient is there, before backward goes on:\nexpected {expected}\ngot      {order}"
            )
            waiting = [call for call in traffic.calls if not call.async_op]
            assert not waiting, (
                f"rank {rank}: {waiting[0]} at {waiting[0].file}:{waiting[0].line} blocks backward until it has "
                "arrived, so nothing overlaps. Launch it asynchronously and wait at the end."
            )


@exercise("2.1", "DataParallel", points=2)
def test_wrapping_copies_parameters_and_buffers_of_rank_0(lab):
    results = lab.on_ranks(3).run(drivers.wrap_only)
    for rank, result in enumerate(results):
        for name, tensor in result.value.items():
            assert (tensor == 1).all(), (
                f"rank {rank} holds {tensor.flatten()[0].item():g} in {name} after wrapping, rank 0 held 1: everything "
                "in the model becomes that of rank 0, frozen parameters and integer buffers too"
            )


# --- Unused parameters, buffers, dtypes, several passes ---------------------------------------------------------------


def union_gradients(branches: Sequence[int], inputs: Sequence[Tensor]) -> dict[str, Tensor | None]:
    model = drivers.Branches(seed=0)
    losses = [model(x, branch).square().mean() for branch, x in zip(branches, inputs, strict=True)]
    torch.stack(losses).mean().backward()
    return drivers.gradients_of(model)


@exercise("2.1", "DataParallel", points=3)
@pytest.mark.parametrize("branches", [(0, 1), (2, -1), (0, 1, 2)])
def test_ranks_use_different_parameters(lab, seed, branches):
    limits = [64, 128, MIB]
    inputs = list(torch.randn(len(branches), 3, 4, generator=torch.Generator().manual_seed(seed)))
    expected = union_gradients(branches, inputs)
    own = list(zip(branches, inputs, strict=True))
    results = lab.on_ranks(len(branches)).run(drivers.branch_gradients, [limit / MIB for limit in limits], per_rank=own)
    for rank, result in enumerate(results):
        for (name, gradient), (limit, gradients) in itertools.product(
            expected.items(), zip(limits, result.value, strict=True)
        ):
            got = gradients[name]
            story = f"rank {rank}, {limit} bytes to a bucket, ranks take branches {list(branches)} (-1: none), {name}:"
            if gradient is not None:
                assert got is not None, (
                    f"{story} no gradient, though another rank uses it: the average belongs here too"
                )
                assert_close(got, gradient, f"{story} the average over the ranks, zero where a rank does not use it")
            elif got is not None:
                assert not got.any(), f"{story} no rank uses it, its gradient is {got.tolist()}"


@exercise("2.1", "Bucket.collect", points=1)
def test_what_no_rank_uses_keeps_no_gradient(lab, seed):
    inputs = list(torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(seed)))
    own = [(0, inputs[0]), (1, 0 * inputs[1])]  # branch 1 is used, its gradient all zeros: not the same thing
    results = lab.on_ranks(2).run(drivers.branch_gradients, [25], per_rank=own)
    for rank, result in enumerate(results):
        got = {name: gradient is not None for name, gradient in result.value[0].items()}
        assert got == {name: name != "branches.2.weight" for name in got}, (
            f"rank {rank}: branch 2 is used nowhere and keeps gradient None (zeros would make AdamW decay it, one "
            f"process would not touch it); all others get one, also a gradient of zeros. Has a gradient: {got}"
        )


@exercise("2.1", "Bucket.collect", points=1)
@pytest.mark.parametrize("ranks", [1, 2])
def test_gradients_are_views_into_the_buckets(lab, ranks):
    limits = [64, MIB]
    expected = [len(expected_buckets([(16, "float32")] * 5, limit)) for limit in limits]
    results = lab.on_ranks(ranks).run(drivers.gradient_storages, [limit / MIB for limit in limits])
    for rank, result in enumerate(results):
        assert result.value == expected, (
            f"rank {rank}: after two steps gradients lie in {result.value} pieces of memory for buckets of {limits} "
            f"bytes, there are {expected} buckets. A gradient is the view of its place in its bucket, no second copy."
        )


@exercise("2.1", "DataParallel", points=2)
def test_buffers_are_those_of_rank_0_after_every_step(lab, seed):
    ranks, steps = 3, 3
    batches = torch.randn(ranks, steps, 5, 3, generator=torch.Generator().manual_seed(seed))
    results = lab.on_ranks(ranks).run(drivers.batch_norm, per_rank=[list(own) for own in batches])
    alone = nn.BatchNorm1d(3)
    for step in range(steps):
        alone(batches[0, step])
        for rank, result in enumerate(results):
            for name, buffer in alone.named_buffers():
                assert_close(
                    result.value["buffers"][step][f"0.{name}"].double(),
                    buffer.double(),
                    f"rank {rank}: {name} of the batch norm after step {step} is that of rank 0, from its own batches",
                )
    for rank, result in enumerate(results):
        assert not result.value["evaluation"], (
            f"rank {rank} communicates in an evaluation ({Traffic.from_data(result.value['evaluation']).ops()}): ranks "
            "that evaluate on different numbers of batches would wait for each other for ever"
        )


@exercise("2.1", "DataParallel", points=1)
@pytest.mark.parametrize("ranks", [1, 3])
def test_two_forwards_one_backward(lab, seed, ranks):
    inputs = torch.randn(ranks, 2, 3, 4, generator=torch.Generator().manual_seed(seed))
    results = lab.on_ranks(ranks).run(drivers.two_forwards, per_rank=[tuple(own) for own in inputs])
    model = drivers.seeded_linear(4, seed=0)
    sum(model(a).square().mean() * model(b).sum() for a, b in inputs).div(ranks).backward()
    once = model.weight.grad.clone()
    sum(model(a).sum() for a, _ in inputs).div(ranks).backward()
    for rank, result in enumerate(results):
        assert result.value["calls"] == 1, f"rank {rank}: one backward, one bucket: {result.value['calls']} calls"
        assert_close(result.value["once"]["weight"], once, f"rank {rank}: gradient through two forwards of the model")
        assert_close(
            result.value["twice"]["weight"], model.weight.grad, f"rank {rank}: a second backward adds its own average"
        )


@exercise("2.1", "DataParallel", points=1)
def test_a_bucket_has_one_dtype(lab):
    results = lab.on_ranks(2).run(drivers.mixed_dtypes, per_rank=[1.0, 4.0])
    sizes = {"float32": 40, "float64": 80, "bfloat16": 10}
    for rank, result in enumerate(results):
        for name, gradient in result.value["gradients"].items():
            assert (gradient == 2.5).all(), (
                f"rank {rank}: the average of 1 and 4 is 2.5, {name} has {gradient.tolist()}"
            )
        calls = Traffic.from_data(result.value["traffic"]).calls
        found = {call.dtype: call.payload_bytes for call in calls}
        assert found == sizes and len(calls) == 3, (
            f"rank {rank}: gradients in three dtypes travel as {sizes} bytes, got {[str(call) for call in calls]}"
        )


# --- no_sync ----------------------------------------------------------------------------------------------------------


@exercise("2.1", "DataParallel.no_sync", points=2)
@pytest.mark.parametrize("ranks", [1, 3])
def test_accumulation_communicates_once(lab, seed, ranks):
    inputs = torch.randn(ranks, 3, 5, 4, generator=torch.Generator().manual_seed(seed))
    results = lab.on_ranks(ranks).run(drivers.accumulate, per_rank=[list(own) for own in inputs])
    local = [accumulated(own[:-1]) for own in inputs]
    average = sum(accumulated(own) for own in inputs) / ranks
    for rank, result in enumerate(results):
        inside, outside = (Traffic.from_data(result.value[name]).ops() for name in ("inside", "outside"))
        assert inside == [], f"rank {rank} called {inside} inside no_sync: nothing may be sent there"
        assert outside == ["all_reduce"], f"rank {rank}: the backward after no_sync sends one bucket, got {outside}"
        assert_close(
            result.value["local"]["weight"], local[rank], f"rank {rank}: inside no_sync gradients add up locally"
        )
        assert_close(
            result.value["averaged"]["weight"],
            average,
            f"rank {rank}: after the last micro-batch the average over the ranks of *all* micro-batches' sum",
        )


def accumulated(inputs: Sequence[Tensor]) -> Tensor:
    """The gradient of `seeded_linear` summed over micro-batches."""
    model = drivers.seeded_linear(4, seed=0)
    for x in inputs:
        model(x).square().mean().backward()
    return model.weight.grad


@exercise("2.1", "DataParallel.no_sync", points=1)
def test_leaving_no_sync_before_backward_synchronises(lab):
    results = lab.on_ranks(2).run(
        drivers.leave_no_sync_before_backward, per_rank=[torch.tensor([[6.0, 1.0]]), torch.tensor([[7.0, 2.0]])]
    )
    got = [result.value for result in results]
    assert got == [[6.5, 1.5]] * 2, (
        f"forward inside no_sync, backward outside: the gradients are averaged to [6.5, 1.5] on both ranks, got {got}. "
        "Each rank's own is what torch leaves here, because it decides in forward."
    )


@exercise("2.1", "DataParallel.no_sync", points=1)
def test_an_error_inside_no_sync_does_not_turn_synchronisation_off(lab):
    results = lab.on_ranks(2).run(
        drivers.leave_no_sync_by_an_error, per_rank=[torch.tensor([[6.0, 1.0]]), torch.tensor([[7.0, 2.0]])]
    )
    got = [result.value for result in results]
    assert got == [[6.5, 1.5]] * 2, f"after no_sync ended in an error, backward averages again to [6.5, 1.5]: got {got}"


@exercise("2.1", "DataParallel.no_sync", points=1)
def test_entering_no_sync_before_backward_does_not(lab):
    results = lab.on_ranks(2).run(
        drivers.enter_no_sync_before_backward, per_rank=[torch.tensor([[6.0, 1.0]]), torch.tensor([[7.0, 2.0]])]
    )
    got = [result.value for result in results]
    assert got == [[6.0, 1.0], [7.0, 2.0]], f"backward inside no_sync: each rank keeps its own gradient, got {got}"


# --- join -------------------------------------------------------------------------------------------------------------


def train_uneven_alone(inputs: Sequence[Sequence[Tensor]], micro_batches: int) -> drivers.State:
    """One process: in every step the sum over the ranks that still have data, divided by the number of all ranks."""
    model = drivers.seeded_linear(4, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for start in range(0, max(map(len, inputs)), micro_batches):
        optimizer.zero_grad()
        for x in itertools.chain(*(own[start : start + micro_batches] for own in inputs)):
            (model(x).square().mean() / len(inputs)).backward()
        optimizer.step()
    return drivers.state_of(model)


@exercise("2.1", "DataParallel.join", points=4)
@pytest.mark.parametrize("batches", [(4,), (2, 6), (6, 2), (0, 4), (8, 2, 4)])
def test_ranks_may_run_out_of_data(lab, seed, batches):
    generator = torch.Generator().manual_seed(seed)
    inputs = [[torch.randn(5, 4, generator=generator) for _ in range(own)] for own in batches]
    sizes = [1, 2]
    results = lab.on_ranks(len(batches)).run(drivers.train_uneven, sizes, per_rank=inputs)
    for index, size in enumerate(sizes):
        story = f"{list(batches)} batches on the ranks, {size} to a step"
        assert_bit_equal([result.value[index] for result in results], f"{story}: after join")
        assert_state(
            results[0].value[index],
            train_uneven_alone(inputs, size),
            f"{story}: gradients of the ranks that have data, summed and divided by all {len(batches)} ranks",
        )


@exercise("2.1", "DataParallel.join", points=1)
def test_every_bucket_and_buffer_is_shadowed(lab):
    results = lab.on_ranks(3).run(drivers.join_with_buffers, per_rank=[2, 0, 4])
    assert_bit_equal(
        [result.value for result in results],
        "batch norm, six buckets, 2, 0 and 4 batches on the ranks: after join. A rank out of data takes part in "
        "every collective of the others' backward: all buckets, then the buffers",
    )


# --- Bad input --------------------------------------------------------------------------------------------------------


@exercise("2.1", "DataParallel", points=1)
@pytest.mark.parametrize("bucket_mb", [0, math.nan])
def test_a_bucket_has_a_size(lab, bucket_mb):
    lab.on_ranks(2).expect_error(ValueError, "DataParallel", None, nn.Linear(2, 2), bucket_mb=bucket_mb)


@exercise("2.1", "DataParallel", points=1)
@pytest.mark.parametrize("module", [nn.ReLU(), nn.Linear(2, 2).requires_grad_(False)], ids=["empty", "frozen"])
def test_there_must_be_something_to_train(lab, module):
    lab.on_ranks(2).expect_error(ValueError, "DataParallel", None, module)


@exercise("2.1", "DataParallel", points=1)
def test_ranks_with_different_models_all_say_so(lab):
    named = {
        "shape": "0.weight",
        "dtype": "1.weight",
        "frozen": "1.bias",
        "layers": "2.weight",
        "bucket_mb": "bucket_mb",
    }
    results = lab.on_ranks(3).run(drivers.wrap_different, list(named))
    for rank, result in enumerate(results):
        for (difference, name), message in zip(named.items(), result.value, strict=True):
            assert name in message and "rank 1" in message, (
                f"rank 1's model differs in {difference}. Every rank must raise a ValueError that names {name} and "
                f"rank 1 instead of exchanging garbage; rank {rank} raised {message or 'none'!r}"
            )


@exercise("2.1", "DataParallel", points=1)
def test_outsiders_are_refused(lab):
    messages = [result.value for result in lab.on_ranks(2).run(drivers.wrap_outside_group)]
    assert messages[0] == "", f"rank 0 is the whole group and must be able to train, got {messages[0]!r}"
    assert "1" in messages[1], f"rank 1 is not in the group: a ValueError that names it, got {messages[1] or 'none'!r}"
