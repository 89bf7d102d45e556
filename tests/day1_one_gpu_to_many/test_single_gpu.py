"""Graded tests of lesson 1.2.

Equal gradients alone do not earn the points: the plain version has them too. What is graded is what the exercise is
for: the largest tensor it ever makes, the bytes alive between forward and backward, the peak, how often a function
runs, how much arithmetic is done; then values and gradients, odd sizes, 16 bits, and the cases in which NaN appears.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from typing import Any

import drivers_single_gpu as drivers
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from shardlab.grade import exercise
from shardlab.models import build

IGNORE = -100
KIB = 2**10


def rng(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def check_close(
    got: Tensor | None, want: Tensor, where: str, look_at: str, rtol: float = 1e-4, least: float = 1e-6
) -> None:
    """Within rounding, relative to the largest element or `least`; and of the same shape and dtype."""
    assert got is not None, f"{where}: there is none. {look_at}"
    assert got.shape == want.shape, f"{where}: shape {list(got.shape)}, expected {list(want.shape)}"
    assert got.dtype == want.dtype, f"{where}: {got.dtype}, expected {want.dtype}"
    assert got.isfinite().all(), f"{where}: holds inf or NaN. {look_at}"
    error = (got.double() - want.double()).abs().max().item() if want.numel() else 0.0
    allowed = rtol * max(want.double().abs().max().item() if want.numel() else 0.0, least)
    assert error <= allowed, f"{where}: off by {error:.2e}, allowed {allowed:.2e}. {look_at}"


def check_own(operations: Sequence[str], banned: Sequence[str], where: str) -> None:
    used = [name for name in operations if any(word in name for word in banned)]
    assert not used, f"{where}: called {used[0]}, which is the thing to build here"


# --- Accumulation -----------------------------------------------------------------------------------------------------


def micro_batch(gradient: float, valid: int, padding: int = 0) -> tuple[Tensor, Tensor]:
    """Inputs whose mean over the valid targets is `gradient`."""
    inputs = torch.full((valid + padding,), gradient) + torch.linspace(-1, 1, valid + padding)
    targets = torch.tensor([0] * valid + [IGNORE] * padding)
    if valid:
        inputs[:valid] += gradient - inputs[:valid].mean()
    return inputs, targets


def accumulated(lab, micro_batches: Sequence[tuple[Tensor, Tensor]], before: float | None = None) -> dict[str, Any]:
    return lab.on_ranks(1).run(drivers.accumulate_numbers, list(micro_batches), before)[0].value


@exercise("1.2", "accumulate_gradients", points=2)
@pytest.mark.parametrize("padding", [0, 5])
def test_three_tokens_and_one_token_weigh_three_to_one(lab, padding):
    got = accumulated(lab, [micro_batch(1.0, 3), micro_batch(5.0, 1, padding)])
    assert got["gradient"].item() == pytest.approx(2.0), (
        f"3 valid targets with gradient 1 and 1 with gradient 5 give (3 x 1 + 1 x 5) / 4 = 2.0: got "
        f"{got['gradient'].item():.3f}. A mean of means is 3.0; counting the padding too gives less than 2."
    )
    assert got["loss"] == pytest.approx(2.0), f"the mean loss over all valid targets is 2.0, got {got['loss']:.3f}"
    assert got["detached"], "the loss returned must be detached: it would keep the graph of a micro-batch alive"
    assert got["dtype"] == "torch.float32", f"the loss returned is float32, whatever it was computed in: {got['dtype']}"
    assert got["calls"] == 2, f"two micro-batches need the model twice, it was called {got['calls']} times"


@exercise("1.2", "accumulate_gradients", points=1)
def test_gradients_are_added_to_what_is_there(lab):
    got = accumulated(lab, [micro_batch(1.0, 2), micro_batch(4.0, 1)], before=10.0)
    assert got["gradient"].item() == pytest.approx(12.0), (
        f".grad was 10 and the batch adds 2: got {got['gradient'].item():.3f}. As backward does, add, and rescale "
        "nothing that was there before."
    )


@exercise("1.2", "accumulate_gradients", points=2)
@pytest.mark.parametrize("empty_at", [0, 1, 2])
def test_a_micro_batch_of_padding_only_changes_nothing(lab, empty_at):
    batches = [micro_batch(1.0, 3), micro_batch(5.0, 1)]
    batches.insert(empty_at, micro_batch(7.0, 0, padding=4))
    got = accumulated(lab, batches)
    assert got["gradient"].item() == pytest.approx(2.0), (
        f"micro-batch {empty_at} of 3 has no valid target, so the gradient stays 2.0: got {got['gradient'].item()}. "
        "Its mean loss is 0 / 0 = NaN, and NaN times a weight of 0 is NaN."
    )
    assert got["loss"] == pytest.approx(2.0), f"and the loss stays 2.0: got {got['loss']}"


@exercise("1.2", "accumulate_gradients", points=1)
def test_padding_only_everywhere(lab):
    got = accumulated(lab, [micro_batch(1.0, 0, padding=2)] * 2, before=1.0)
    assert got["gradient"].item() == 1.0, f"without a valid target nothing is added to .grad: got {got['gradient']}"
    assert got["loss"] == 0.0, f"without a valid target the loss is 0, got {got['loss']}"


@exercise("1.2", "accumulate_gradients", points=1)
def test_no_micro_batch_is_refused(lab):
    lab.expect_error(ValueError, "accumulate_gradients", None, [], None)


@exercise("1.2", "accumulate_gradients", points=2)
def test_a_transformer_gets_the_gradient_of_the_union(lab, seed):
    generator = rng(seed)
    batches = []
    for rows, length in ((2, 7), (1, 12), (3, 5)):
        tokens = torch.randint(drivers.CONFIG.vocab, (rows, length + 1), generator=generator)
        targets = tokens[:, 1:].clone()
        targets[torch.rand(rows, length, generator=generator) < 0.4] = IGNORE
        targets[0, 0] = 1
        batches.append((tokens[:, :-1], targets))
    got = lab.on_ranks(1).run(drivers.accumulate_text, batches, seed)[0].value
    model = build(drivers.CONFIG, seed)
    valid = sum((targets != IGNORE).sum() for _, targets in batches)
    sums = (
        F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten(), reduction="sum") for inputs, targets in batches
    )
    loss = sum(sums) / valid
    loss.backward()
    assert got["loss"] == pytest.approx(loss.item(), rel=1e-5)
    for name, want in drivers.gradients_of(model).items():
        check_close(got["gradients"][name], want, f"gradient of {name}", "It is the one of all valid targets together.")


@exercise("1.2", "accumulate_gradients", points=2)
def test_one_micro_batch_is_alive_at_a_time(lab):
    two, eight = lab.on_ranks(1).run(drivers.accumulate_peak, [2, 8])[0].value
    assert eight <= two + KIB, (
        f"2 micro-batches peak at {two:,} B, 8 of them at {eight:,} B: the activations of a micro-batch must be gone "
        "before the next one. Call backward on each loss, and not once on their sum."
    )


# --- Loss scaling -----------------------------------------------------------------------------------------------------

BAD = [math.inf, -math.inf, math.nan]
GROWING = {"scale": 8.0, "growth": 2.0, "backoff": 0.5, "interval": 2}
COARSE = {"scale": 64.0, "growth": 4.0, "backoff": 0.25, "interval": 3}


def scaler_steps(seed: int, pattern: str) -> list[list[Tensor | None]]:
    """Three gradients per step. In an "x" step one of their elements is inf, -inf or NaN; in the others none is."""
    generator = rng(seed)
    steps = []
    for index, kind in enumerate(pattern):
        gradients: list[Tensor | None] = [torch.randn(4, generator=generator) for _ in range(3)]
        if kind == "x":
            where = int(torch.randint(12, (), generator=generator)) if index % 2 else 11
            gradients[where // 4][where % 4] = BAD[index % 3]
        steps.append(gradients)
    return steps


def expected_scales(settings: dict[str, Any], pattern: str) -> Iterator[float]:
    value, good = settings["scale"], 0
    for kind in pattern:
        good = good + 1 if kind == "." else 0
        if kind == "x":
            value *= settings["backoff"]
        elif good == settings["interval"]:
            value, good = value * settings["growth"], 0
        yield value


@exercise("1.2", "LossScaler.step", points=3)
@pytest.mark.parametrize(("settings", "pattern"), [(GROWING, "..x.x..x.....xx...."), (COARSE, "x..x...x..x......")])
def test_the_scale_backs_off_and_grows_back(lab, seed, settings, pattern):
    rows = lab.on_ranks(1).run(drivers.scaled_steps, settings, scaler_steps(seed, pattern))[0].value["rows"]
    assert [row["taken"] for row in rows] == [kind == "." for kind in pattern], (
        f"steps {pattern} (x: some gradient holds inf or NaN) were taken as {[row['taken'] for row in rows]}"
    )
    scales = [row["scale"] for row in rows]
    assert scales == list(expected_scales(settings, pattern)), (
        f"steps {pattern}, {settings}: the scales should be {list(expected_scales(settings, pattern))}, got {scales}. "
        "An overflow starts the count of good steps again, and so does a growth."
    )


@exercise("1.2", "LossScaler.step", points=2)
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_a_step_with_an_overflow_changes_nothing(lab, seed, optimizer):
    steps = scaler_steps(seed, "..x.")
    done = lab.on_ranks(1).run(drivers.scaled_steps, GROWING, steps, -1, optimizer)[0].value
    before, after, next_one = done["rows"][1:]
    for what in ("weights", "state"):
        same = all(map(torch.equal, before[what], after[what]))
        assert same, f"{optimizer}: the skipped step changed {what}: inf or NaN must never reach optimizer.step"
    assert not any(map(torch.equal, after["weights"], next_one["weights"])), "the step after a skipped one is taken"
    assert not done["by torch"], "optimizer.step was called by torch's GradScaler, which is the thing to build here"
    gradient = torch.tensor([math.inf, 1.0, -math.inf])
    clipped = lab.on_ranks(1).run(drivers.unscale_then_clip_values, gradient)[0].value
    assert (clipped["finite"], clipped["taken"], clipped["scale"]) == (False, False, 4.0), (
        "unscale found inf, and clipping by value made it 1 before step: the verdict of unscale counts, so the step is "
        f"left out and the scale halves from 8 to 4: got {clipped}"
    )
    assert not clipped["weight"].count_nonzero(), f"and no weight changes: got {clipped['weight']}"


@exercise("1.2", "LossScaler.step", points=2)
def test_training_goes_on_as_if_nothing_was_scaled(lab, seed):
    steps = scaler_steps(seed, "......")
    steps[1][2] = None
    rows = lab.on_ranks(1).run(drivers.scaled_steps, GROWING, steps)[0].value["rows"]
    weights = [torch.nn.Parameter(torch.ones(4)) for _ in range(3)]
    optimizer = torch.optim.SGD(weights, lr=0.5, momentum=0.5)
    for index, (row, gradients) in enumerate(zip(rows, steps, strict=True)):
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.grad = gradient
        optimizer.step()
        for got, want in zip(row["weights"], weights, strict=True):
            check_close(got, want.detach(), f"weights after step {index}", "Gradients are divided by the scale once.")


@exercise("1.2", "LossScaler.step", points=1)
def test_the_scale_stays_finite(lab):
    settings = {"scale": 2.0**120, "growth": 16.0, "backoff": 0.5, "interval": 1}
    zeros = [[torch.zeros(4)] * 3] * 5
    rows = lab.on_ranks(1).run(drivers.scaled_steps, settings, zeros)[0].value["rows"]
    largest = torch.finfo(torch.float32).max
    scales = [row["scale"] for row in rows]
    assert scales[-1] == largest, (
        f"zeros never overflow: the scale stops at the largest float32, {largest}: got {scales}"
    )
    settings = {"scale": 2.0**-100, "growth": 2.0, "backoff": 2.0**-10, "interval": 1}
    steps = [[torch.full((4,), math.nan)] * 3] * 4 + [[torch.ones(4)] * 3]
    rows = lab.on_ranks(1).run(drivers.scaled_steps, settings, steps)[0].value["rows"]
    smallest, scales = torch.finfo(torch.float32).tiny, [row["scale"] for row in rows]
    assert scales[3:] == [smallest, 2 * smallest] and rows[-1]["taken"], (
        f"after NaN again and again the scale stops at the smallest normal float32, {smallest}, and grows back: got "
        f"{scales}. At 0 every gradient would be 0 / 0 for ever."
    )


@exercise("1.2", "LossScaler.scale", points=2)
def test_a_gradient_below_float16_survives(lab):
    kept, lost = (lab.on_ranks(1).run(drivers.half_precision_step, scale)[0].value for scale in (2.0**16, 1.0))
    assert kept["ratio"] == 2.0**16, f"scale must multiply the loss by {2.0**16}, it was {kept['ratio']}"
    assert kept["taken"] and torch.equal(kept["gradient"], torch.full((3,), 2.0**-28)), (
        f"the gradient is 2^-28, below the smallest float16; scaled by 2^16 it comes through: got {kept['gradient']}"
    )
    assert lost["gradient"].count_nonzero() == 0, "without scaling this gradient is 0: that is why one scales"


@exercise("1.2", "LossScaler.unscale", points=2)
def test_unscale_comes_before_clipping(lab, seed):
    gradient = torch.randn(8, generator=rng(seed)) * 10
    got = lab.on_ranks(1).run(drivers.unscale_then_step, gradient, 1024.0)[0].value
    assert got["finite"] is True, f"unscale returns whether all gradients are finite: got {got['finite']}"
    check_close(got["unscaled"], gradient, "gradient after unscale", "Divide by the scale, in place.", rtol=1e-6)
    clipped = gradient / gradient.norm()
    assert got["twice"].startswith("ValueError"), (
        f"a second unscale before step must raise ValueError: {got['twice']!r}"
    )
    check_close(got["after refusal"], clipped, "gradient after the refused unscale", "Refuse first.", rtol=1e-5)
    check_close(got["weight"], -clipped, "weight after step", "step must not divide a second time.", rtol=1e-5)
    assert got["next step"] == "", f"after step, unscale is allowed again: {got['next step']}"


@exercise("1.2", "LossScaler.unscale", points=2)
def test_one_bad_element_anywhere_is_found(lab, seed):
    steps = scaler_steps(seed, ".xxxxxx.")
    steps.append([None, torch.ones(4), None])
    verdicts = lab.on_ranks(1).run(drivers.unscale_each, steps)[0].value
    for gradients, verdict in zip(steps, verdicts, strict=True):
        want = all(gradient.isfinite().all() for gradient in gradients if gradient is not None)
        assert verdict == bool(want), f"gradients {gradients}: are all finite? unscale says {verdict}"


@exercise("1.2", "LossScaler.unscale", points=1)
def test_float16_gradients_are_refused(lab):
    got = lab.on_ranks(1).run(drivers.unscale_half)[0].value
    assert got["error"].startswith("ValueError"), f"float16 gradients must be refused: got {got['error']!r}"
    assert all((gradient == 8).all() for gradient in got["gradients"]), "and no gradient may be changed before that"


@exercise("1.2", "LossScaler.unscale", points=1)
def test_the_verdict_costs_one_copy_to_the_host(lab):
    copies = lab.on_ranks(1).run(drivers.unscale_syncs, 20)[0].value
    assert copies <= 1, (
        f"unscaling 20 gradients copied {copies} values to the host; on a GPU each one waits for all work in flight. "
        "Keep one answer per gradient on the device, and ask once."
    )


@exercise("1.2", "LossScaler.load_state_dict", points=2)
def test_a_resumed_scaler_goes_on_as_before(lab, seed):
    pattern = "..x...x....."
    for settings, at in itertools.product((GROWING, COARSE), (1, 4, 9)):
        steps = scaler_steps(seed, pattern)
        rows = lab.on_ranks(1).run(drivers.scaled_steps, settings, steps, at)[0].value["rows"]
        scales, want = [row["scale"] for row in rows], list(expected_scales(settings, pattern))
        assert scales == want, (
            f"saved before step {at} of {pattern} and loaded into a new LossScaler(): scales {scales}, not {want}. "
            "The count of good steps and all four settings are part of the state."
        )


@exercise("1.2", "LossScaler.load_state_dict", points=1)
def test_a_foreign_state_is_refused(lab):
    for what, error in zip(
        ("too few keys", "a key too many", "no keys"),
        lab.on_ranks(1).run(drivers.load_bad_states)[0].value,
        strict=True,
    ):
        assert error.startswith("ValueError"), f"a state with {what} must raise ValueError, got {error or 'no error'!r}"


@exercise("1.2", "LossScaler.state_dict", points=1)
def test_the_state_is_plain_numbers(lab):
    state = lab.on_ranks(1).run(drivers.state_of_scaler, COARSE)[0].value
    assert json.loads(json.dumps(state)) == state, f"a state must go through JSON unchanged: {state}"
    assert {64.0, 4.0, 0.25, 3, 0} <= set(state.values()), f"scale, settings and good steps are the state: got {state}"


# --- Checkpointing ----------------------------------------------------------------------------------------------------


@exercise("1.2", "surroundings", points=3)
def test_random_numbers_are_drawn_again_and_nobody_else_notices(lab, seed):
    got = lab.on_ranks(1).run(drivers.draw_again, seed % 2**31)[0].value
    expected, outside, inside = got["expected"], got["outside"], got["inside"]
    for index, (drawn, want) in enumerate(zip(inside, (expected[1], expected[2], expected[1]), strict=True)):
        assert torch.equal(drawn, want), (
            f"draw {index} inside the blocks should be the one that came first after surroundings() was called: each "
            "block starts from the state that was noted, however often."
        )
    assert got["error"] == "planted", "an exception inside the block comes out of it"
    for index, (drawn, want) in enumerate(zip(outside, expected, strict=True)):
        assert torch.equal(drawn, want), (
            f"draw {index} outside the blocks differs from what plain code draws: put back the state of before the "
            "block at its end, after an exception too."
        )


@exercise("1.2", "surroundings", points=2)
def test_autocast_is_brought_back(lab):
    want = {
        "noted under autocast to float16, back outside": "torch.float16",
        "noted under autocast, back outside": "torch.bfloat16",
        "after the block": "torch.float32",
        "noted outside, back under autocast": "torch.float32",
        "after that block": "torch.bfloat16",
    }
    got = lab.on_ranks(1).run(drivers.cast_again)[0].value
    for where, dtype in want.items():
        assert got[where] == dtype, f"a matrix product, {where}: {got[where]}, expected {dtype}"


CASES = ["simple", "inputs without gradient", "other arguments", "several results", "dropout", "autocast"]


@exercise("1.2", "checkpoint", points=6)
@pytest.mark.parametrize("what", CASES)
def test_checkpoint_gives_the_plain_gradients(lab, seed, what):
    got = lab.on_ranks(1).run(drivers.compare, what, seed % 2**31)[0].value
    mine, want = got["checkpoint"], got["plain"]
    where = f"checkpoint, {what}"
    assert mine["loss"] == pytest.approx(want["loss"], rel=1e-6), f"{where}: loss {mine['loss']}, plain {want['loss']}"
    for name, gradient in want["gradients"].items():
        if gradient is None:
            assert mine["gradients"][name] is None, f"{where}: {name} requires no gradient and got one"
            continue
        check_close(
            mine["gradients"][name],
            gradient,
            f"{where}: gradient of {name}",
            {
                "dropout": "The second run must draw the first one's mask.",
                "autocast": "The second run must compute in the first one's dtypes.",
                "inputs without gradient": "Parameters that fn uses need gradients even if no argument does.",
            }.get(what, "It must be the one without checkpoint."),
        )
    assert torch.equal(mine["next draw"], want["next draw"]), (
        f"{where}: after backward the next random number is another one. The second run may not move the generator."
    )
    assert len(set(mine["dtypes"])) == 1, f"{where}: the runs computed in {mine['dtypes']}: autocast is not the same"
    assert mine["calls"] == (1, 2), (
        f"{where}: fn had run {mine['calls'][0]} times after forward and {mine['calls'][1]} after backward. It is once "
        "and, to make again what was not kept, once more."
    )
    assert not mine["by torch"], f"{where}: fn was called by torch.utils.checkpoint, which is the thing to build here"


@exercise("1.2", "checkpoint", points=1)
def test_without_gradients_there_is_nothing_to_keep(lab, seed):
    got = lab.on_ranks(1).run(drivers.without_gradients, seed % 2**31)[0].value
    assert got == {"calls": 1, "requires grad": False}, f"under no_grad fn runs once, and that is all: {got}"


@exercise("1.2", "checkpoint", points=2)
def test_backward_can_come_back(lab, seed):
    got = lab.on_ranks(1).run(drivers.backward_twice, seed % 2**31)[0].value
    for once, twice in zip(got["once"], got["twice"], strict=True):
        check_close(twice, once, "gradient of a second backward", "What was handed back must be made again.", rtol=1e-6)
    assert got["calls"] <= 3, f"two backwards need fn twice after the first run: it ran {got['calls']} times in all"


@exercise("1.2", "checkpoint", points=1)
def test_a_function_that_changes_is_noticed(lab):
    error = lab.on_ranks(1).run(drivers.changed_between_runs)[0].value
    assert error.startswith("RuntimeError"), (
        f"fn saved 1 tensor in its first run and 4 in its second: number 0 now means another tensor. Backward must "
        f"raise RuntimeError, got {error or 'no error'!r}"
    )


@exercise("1.2", "checkpoint", points=4)
def test_only_the_arguments_stay_in_memory(lab):
    rows = 512
    got = lab.on_ranks(1).run(drivers.checkpoint_memory, rows)[0].value
    row_bytes, want = got["plain"]["row bytes"], got["plain"]["gradient"]
    for how, results in (("each", 4), ("nested", 2)):
        limit = results * row_bytes + 16 * KIB
        assert got[how]["held"] <= limit, (
            f"checkpoint, {how}: between forward and backward {got[how]['held']:,} B are alive beside parameters and "
            f"input, allowed are the {results} results that follow one another, {limit:,} B "
            f"(without checkpoint: {got['plain']['held']:,} B). "
            + ("An inner checkpoint's arguments belong to keep_inputs." if how == "nested" else "Keep args alone.")
        )
        assert got[how]["gradient"] == pytest.approx(want, rel=1e-4), f"checkpoint, {how}: the gradient is another"
    inputs = 4 * row_bytes
    assert got["each"]["saved"] <= inputs, (
        f"autograd was asked to save {got['each']['saved']:,} B outside of the checkpoints' hooks, and the inputs of "
        f"all four have {inputs:,} B"
    )
    assert got["each"]["peak"] < 0.5 * got["plain"]["peak"], (
        f"the peak is {got['each']['peak']:,} B, without checkpoint {got['plain']['peak']:,} B: what the second run of "
        "a block made must be gone before that of the next one"
    )


# --- The loss ---------------------------------------------------------------------------------------------------------

OWN_LOSS = ("linear_cross_entropy",)
LOOK_AT_LOSS = "d loss / d logits = (softmax - onehot) / number of valid targets, 0 where the target is ignored."


def loss_case(
    seed: int,
    shape: tuple[int, ...],
    vocab: int = 11,
    width: int = 6,
    wanted: Sequence[str] = ("hidden", "weight"),
    factor: float = 1.0,
    ignored: float = 0.3,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> dict[str, Any]:
    generator = rng(seed)
    targets = torch.randint(vocab, shape, generator=generator)
    ignore_index = options.get("ignore_index", IGNORE)
    targets[torch.rand(shape, generator=generator) < ignored] = ignore_index
    hidden = (3 * torch.randn(*shape, width, generator=generator)).to(dtype)
    weight = torch.randn(vocab, width, generator=generator).to(dtype)
    given = {"hidden": hidden, "weight": weight, "targets": targets, "options": options}
    return given | {"wanted": list(wanted), "factor": factor}


def expected_loss(case: dict[str, Any]) -> dict[str, Tensor]:
    """By F.cross_entropy in float64, then in the dtypes that are due."""
    hidden, weight = (case[name].double().requires_grad_() for name in ("hidden", "weight"))
    targets, ignore_index = case["targets"].flatten(), case["options"].get("ignore_index", IGNORE)
    total = F.cross_entropy(
        (hidden @ weight.mT).flatten(0, -2), targets, ignore_index=ignore_index, reduction="sum"
    ) / (targets != ignore_index).sum().clamp(min=1)
    (total * case["factor"]).backward()
    gradients = {"hidden": hidden.grad.to(case["hidden"].dtype), "weight": weight.grad.to(case["weight"].dtype)}
    return {"loss": total.detach().float()} | gradients


def check_losses(lab, cases: Sequence[dict[str, Any]], names: Sequence[str], rtol: float = 1e-4) -> None:
    got = lab.on_ranks(1).run(drivers.chunked_losses, list(cases))[0].value
    for case, outcome in zip(cases, got, strict=True):
        where = f"hidden {list(case['hidden'].shape)} {case['hidden'].dtype}, {case['options']}"
        want = expected_loss(case)
        for name in names:
            if name == "loss" or name in case["wanted"]:
                least = 1e-2 if name == "loss" else 1e-6  # log-sum-exp less a logit: what cancels was of size 1
                check_close(outcome[name], want[name], f"{where}: {name}", LOOK_AT_LOSS, rtol, least)
            else:
                assert outcome[name] is None, f"{where}: {name} requires no gradient and got one"
        check_own(outcome["operations"], OWN_LOSS, where)
        assert not case["wanted"] or "ChunkedCrossEntropy" in outcome["function"], (
            f"the loss comes from {outcome['function']}; its gradient belongs into ChunkedCrossEntropy"
        )


@exercise("1.2", "ChunkedCrossEntropy.forward", points=3)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_loss_is_the_mean_over_valid_targets(lab, seed, chunk):
    shapes = [(20,), (3, 7), (1,), (2, 2, 5)]
    cases = [loss_case(seed + index, shape, chunk=chunk) for index, shape in enumerate(shapes)]
    cases.append(loss_case(seed, (21,), chunk=chunk, ignore_index=3))
    cases.append(loss_case(seed, (9,), chunk=chunk, ignored=1.1))  # no valid target at all
    check_losses(lab, cases, ["loss"])


@exercise("1.2", "ChunkedCrossEntropy.backward", points=4)
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_chunked_loss_gradients(lab, seed, chunk):
    cases = [
        loss_case(seed, (20,), chunk=chunk),
        loss_case(seed + 1, (3, 7), chunk=chunk, factor=-2.5),
        loss_case(seed + 2, (8,), chunk=chunk, ignored=1.1),
        loss_case(seed + 3, (15,), chunk=chunk, ignore_index=0, factor=0.25),
        loss_case(seed + 4, (15,), chunk=chunk, wanted=["weight"]),
        loss_case(seed + 5, (15,), chunk=chunk, wanted=["hidden"]),
    ]
    check_losses(lab, cases, ["loss", "hidden", "weight"])


@exercise("1.2", "ChunkedCrossEntropy.backward", points=1)
def test_chunked_loss_in_bfloat16(lab, seed):
    cases = [loss_case(seed, (300,), vocab=50, chunk=8, dtype=torch.bfloat16)]
    same = loss_case(seed, (500,), vocab=5, width=4, chunk=1, ignored=0, dtype=torch.bfloat16)
    same["targets"].zero_()  # 500 equal summands for each weight: in 16 bits the sum would stop growing halfway
    cases.append(same | {"hidden": torch.ones_like(same["hidden"]), "weight": same["weight"] / 10})
    check_losses(lab, cases, ["loss", "hidden", "weight"], rtol=2e-2)


@exercise("1.2", "ChunkedCrossEntropy.backward", points=2)
def test_a_tied_weight_gets_both_gradients(lab, seed):
    generator = rng(seed)
    tokens, targets = (torch.randint(9, (2, 6), generator=generator) for _ in range(2))
    weight = torch.randn(9, 5, generator=generator)
    got = lab.on_ranks(1).run(drivers.tied_loss, tokens, targets, weight, 5)[0].value
    weight.requires_grad_()
    F.cross_entropy((F.embedding(tokens, weight).tanh() @ weight.mT).flatten(0, 1), targets.flatten()).backward()
    check_close(got, weight.grad, "gradient of a weight that is embedding and output layer", LOOK_AT_LOSS)


@exercise("1.2", "ChunkedCrossEntropy.forward", points=4)
@pytest.mark.parametrize(("tokens", "chunk"), [(1024, 16), (4096, 64)])
def test_the_logits_never_exist_in_full(lab, tokens, chunk):
    width, vocab = 8, 500
    got = lab.on_ranks(1).run(drivers.chunked_memory, tokens, width, vocab, chunk)[0].value
    largest = max(chunk * vocab, tokens * width, vocab * width)
    where = f"{tokens} tokens, {vocab} words, chunks of {chunk} (all logits: {tokens * vocab:,} elements)"
    assert got["largest"] <= largest, (
        f"{where}: an operation made a tensor of {got['largest']:,} elements; the logits of a chunk have "
        f"{chunk * vocab:,}, hidden {tokens * width:,}"
    )
    parts = 4 * (4 * chunk * vocab + 3 * tokens * width + 4 * vocab * width + 8 * tokens)
    assert got["peak"] <= parts, (
        f"{where}: the peak beyond the inputs is {got['peak']:,} B, more than the {parts:,} B of some chunks and the "
        "gradients. Is a chunk kept for backward?"
    )
    kept = 4 * (tokens * width + vocab * width + 4 * tokens) + 4 * (tokens * width + vocab * width)
    assert max(got["held"], got["saved"]) <= kept, (
        f"between forward and backward {got['held']:,} B are held and {got['saved']:,} B saved; the gradients of "
        f"hidden and weight, or what makes them again, are {kept:,} B at most"
    )


@exercise("1.2", "ChunkedCrossEntropy.forward", points=1)
def test_evaluation_computes_no_gradients(lab, seed):
    case = loss_case(seed, (10,), vocab=7, width=4)
    inputs = (case["hidden"], case["weight"], case["targets"])
    got = lab.on_ranks(1).run(drivers.loss_for_evaluation, *inputs)[0].value
    check_close(got["loss"], expected_loss(case)["loss"], "loss under no_grad", LOOK_AT_LOSS)
    assert got["flops"] == 2 * 10 * 7 * 4, (
        f"under no_grad the loss of 10 tokens, 7 words, width 4 took {got['flops']} FLOPs in matrix products, and the "
        f"logits alone take {2 * 10 * 7 * 4}: leave the gradients out when train is False"
    )


# --- Attention --------------------------------------------------------------------------------------------------------

OWN_ATTENTION = ("scaled_dot_product", "flash", "flex", "efficient_attention")
LENGTHS = [(16, 16), (13, 13), (7, 21), (21, 7), (1, 9), (23, 22), (9, 1)]  # queries, keys
SHORT_LENGTHS = [(4, 4), (2, 5), (5, 2)]  # for blocks of one query and one key
LOOK_AT_FORWARD = "A larger maximum shrinks what was summed so far; divide by the sum once, at the end."
LOOK_AT_BACKWARD = "P = exp(S - lse), dS = P (dP - delta); every tile adds to dQ, dK and dV."


def visible(queries: int, keys: int, causal: bool) -> Tensor:
    """[queries, keys] bool: the last query sees all keys."""
    everything = torch.ones(queries, keys, dtype=torch.bool)
    return everything.tril(keys - queries) if causal else everything


def attention_case(
    seed: int,
    lengths: tuple[int, int],
    causal: bool,
    block: int,
    width: int = 4,
    value_width: int = 4,
    size: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    generator = rng(seed)
    queries, keys = lengths

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(dtype)

    return {
        "query": size * normal(2, 3, queries, width),
        "key": normal(2, 3, keys, width),
        "value": normal(2, 3, keys, value_width),
        "gradient": normal(2, 3, queries, value_width),
        "causal": causal,
        "block": block,
    }


def expected_attention(case: dict[str, Any]) -> tuple[Tensor, list[Tensor]]:
    """By the formula in float64, rows that see nothing left out; then in the dtype that is due."""
    query, key, value = (case[name].double().requires_grad_() for name in ("query", "key", "value"))
    sees = visible(query.shape[2], key.shape[2], case["causal"])
    scores = (query @ key.mT / math.sqrt(query.shape[3])).masked_fill(~sees, -math.inf)
    some = sees.any(1)
    output = torch.zeros(*query.shape[:3], value.shape[3], dtype=torch.float64)
    output[:, :, some] = scores[:, :, some].softmax(-1) @ value
    output.backward(case["gradient"].double())
    dtype = case["query"].dtype
    return output.detach().to(dtype), [tensor.grad.to(dtype) for tensor in (query, key, value)]


def check_attention(lab, cases: Sequence[dict[str, Any]], backward: bool, rtol: float = 1e-4) -> None:
    got = lab.on_ranks(1).run(drivers.attend, list(cases), backward)[0].value
    for case, outcome in zip(cases, got, strict=True):
        lengths = f"{case['query'].shape[2]} queries, {case['key'].shape[2]} keys"
        where = f"{lengths}, block {case['block']}, {'causal' if case['causal'] else 'not causal'}"
        output, gradients = expected_attention(case)
        check_close(outcome["output"], output, f"{where}: output", LOOK_AT_FORWARD, rtol)
        if backward:
            for name, mine, want in zip(("query", "key", "value"), outcome["gradients"], gradients, strict=True):
                check_close(mine, want, f"{where}: gradient of {name}", LOOK_AT_BACKWARD, rtol)
        check_own(outcome["operations"], OWN_ATTENTION, where)


@exercise("1.2", "tile_scores", points=3)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(6, 6), (5, 9), (9, 5), (1, 7)])
def test_scores_of_a_tile(lab, seed, queries, keys, causal):
    generator = rng(seed)
    query, key = (torch.randn(3, length, 4, generator=generator) for length in (queries, keys))
    cuts = [sorted({0, length // 3, 2 * length // 3, length - 1, length}) for length in (queries, keys)]
    edges = [[*itertools.pairwise(cut), (0, cut[-1])] for cut in cuts]
    tiles = [(*rows, *columns) for rows, columns in itertools.product(*edges)]
    got = lab.on_ranks(1).run(drivers.score_tiles, query, key, tiles, causal)[0].value
    sees = visible(queries, keys, causal)
    scores = (query @ key.mT / 2.0).masked_fill(~sees, -math.inf)
    for (top, bottom, left, right), outcome in zip(tiles, got, strict=True):
        where = f"{queries} queries, {keys} keys, causal {causal}: tile {top}:{bottom}, {left}:{right}"
        want, hidden = scores[:, top:bottom, left:right], not sees[top:bottom, left:right].any()
        if hidden:
            assert outcome["scores"] is None, f"{where}: no query sees a key here, so the result is None"
            assert outcome["flops"] == 0, f"{where}: a product was computed for a tile that nobody sees"
            continue
        assert outcome["scores"] is not None, f"{where}: some query sees a key here, and the result is None"
        assert_close(
            outcome["scores"],
            want,
            msg=lambda text, where=where: (
                f"{where}: query i sees key j if j <= i + Tk - Tq, and scores are divided by sqrt(D).\n{text}"
            ),
        )


@exercise("1.2", "tile_scores", points=1)
def test_scores_are_float32(lab, seed):
    query, key = (torch.randn(2, 5, 8, generator=rng(seed)).bfloat16() for _ in range(2))
    (outcome,) = lab.on_ranks(1).run(drivers.score_tiles, query, key, [(0, 5, 0, 5)], False)[0].value
    want = query.float() @ key.float().mT / math.sqrt(8)
    check_close(outcome["scores"], want, "scores of bfloat16 tensors", "Upcast before the product.", rtol=1e-5)


@exercise("1.2", "FlashAttention.forward", points=4)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [1, 5, 64])
def test_flash_attention_is_attention(lab, seed, block, causal):
    cases = [
        attention_case(seed + index, lengths, causal, block)
        for index, lengths in enumerate(LENGTHS if block > 1 else SHORT_LENGTHS)
    ]
    cases.append(attention_case(seed, (6, 6), causal, block, width=3, value_width=7))
    cases.append(attention_case(seed, (7, 7), causal, block, size=300.0))  # exp overflows unless the maximum goes first
    check_attention(lab, cases, backward=False)


@exercise("1.2", "FlashAttention.backward", points=6)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("block", [1, 5, 64])
def test_flash_attention_gradients(lab, seed, block, causal):
    cases = [
        attention_case(seed + index, lengths, causal, block)
        for index, lengths in enumerate(LENGTHS if block > 1 else SHORT_LENGTHS)
    ]
    cases.append(attention_case(seed, (6, 6), causal, block, width=3, value_width=7))
    cases.append(attention_case(seed, (7, 7), causal, block, size=30.0))
    check_attention(lab, cases, backward=True)


@exercise("1.2", "FlashAttention.backward", points=2)
def test_flash_attention_in_bfloat16(lab, seed):
    cases = [attention_case(seed, (48, 48), causal, 8, width=8, dtype=torch.bfloat16) for causal in (False, True)]
    for lengths in ((4, 512), (512, 4)):  # sums of 128 tiles, which 16 bits would round 128 times
        long = attention_case(seed, lengths, False, 4, width=8, dtype=torch.bfloat16)
        cases.append(long | {"gradient": long["gradient"].abs() + 1})
    check_attention(lab, cases, backward=True, rtol=1e-2)


@exercise("1.2", "FlashAttention.backward", points=1)
def test_flash_attention_under_autocast(lab, seed):
    case = attention_case(seed, (40, 40), True, 16)
    inputs = [case[name] for name in ("query", "key", "value")]
    got = lab.on_ranks(1).run(drivers.attend_under_autocast, *inputs)[0].value
    rounded = case | {name: case[name].bfloat16().float() for name in ("query", "key", "value")}
    output, _ = expected_attention(rounded)
    for where, outcome in got.items():
        check_close(
            outcome["output"], output.bfloat16(), f"under autocast, backward {where}", LOOK_AT_FORWARD, rtol=1e-2
        )
        for mine, first in zip(outcome["gradients"], got["outside"]["gradients"], strict=True):
            check_close(
                mine, first, f"gradient under autocast, backward {where}", "Autocast is off in both.", rtol=1e-6
            )


@exercise("1.2", "FlashAttention.forward", points=4)
@pytest.mark.parametrize("causal", [False, True])
def test_forward_memory_is_linear(lab, causal):
    check_memory(lab, causal, backward=False)


@exercise("1.2", "FlashAttention.backward", points=4)
@pytest.mark.parametrize("causal", [False, True])
def test_backward_memory_is_linear(lab, causal):
    check_memory(lab, causal, backward=True)


def check_memory(lab, causal: bool, backward: bool) -> None:
    """Heads 2, width 4, block 16, lengths T and 4 T: every number grows by 4 at most, and no tensor by a T x T part."""
    width, block, lengths = 4, 16, [64, 256]
    short, long = lab.on_ranks(1).run(drivers.attention_costs, lengths, width, block, causal, backward)[0].value
    for got in (short, long):
        where = f"T = {got['length']}, block {block}{', forward and backward' if backward else ''}"
        largest = 2 * max(got["length"] * width, block * block)
        assert got["largest"] <= largest, (
            f"{where}: an operation made a tensor of {got['largest']:,} elements; inputs and tiles have {largest:,} at "
            f"most (all scores: {2 * got['length'] ** 2:,}). Cut queries and keys, both."
        )
        size = 4 * 2 * got["length"] * width
        saved = 4 * size + 2 * 4 * 2 * got["length"]
        assert got["saved"] <= saved, (
            f"{where}: {got['saved']:,} B are saved for backward; query, key, value, output and two numbers per query "
            f"are {saved:,} B"
        )
        assert got["held"] <= saved - 3 * size + 2 * KIB, (
            f"{where}: {got['held']:,} B are held beyond the inputs between forward and backward: output and two "
            f"numbers per query are {saved - 3 * size:,} B"
        )
    for what in ("peak", "held"):
        assert long[what] <= 4 * short[what], (
            f"T = {short['length']}: {what} {short[what]:,} B beyond the inputs; T = {long['length']}: {long[what]:,} "
            "B. 4 times as long may take 4 times as much; more means that something grows with T squared."
        )


@exercise("1.2", "FlashAttention.forward", points=2)
def test_causal_forward_leaves_hidden_tiles_out(lab):
    check_causal_work(lab, "forward", products=2)


@exercise("1.2", "FlashAttention.backward", points=3)
def test_backward_computes_each_tile_once(lab):
    check_causal_work(lab, "backward", products=5)


def check_causal_work(lab, part: str, products: int) -> None:
    """FLOPs of a whole and a causal pass: so many products per tile, and only the tiles on and below the diagonal."""
    length, width, block = 128, 4, 16
    tiles = length // block
    per_product = 2 * 2 * length * length * width  # two heads
    for causal, share in ((False, 1.0), (True, (tiles + 1) / (2 * tiles))):
        got = lab.on_ranks(1).run(drivers.attention_flops, length, width, block, causal)[0].value
        want = products * per_product * share
        assert got[part] <= want, (
            f"{part}, causal {causal}, {tiles} x {tiles} tiles: {got[part]:,} FLOPs in matrix products. {products} "
            f"products of each tile that is seen are {want:,.0f}. "
            + ("Hidden tiles cost nothing." if part == "forward" else "The log-sum-exp spares you forward's products.")
        )


# --- Given: not graded ------------------------------------------------------------------------------------------------


def test_given_code_refuses_what_cannot_be(lab):
    for what, error in lab.on_ranks(1).run(drivers.refuse_each)[0].value.items():
        assert error.startswith("ValueError"), f"{what}: {error or 'no error'}"


def test_keep_inputs_gives_back_and_notices_changes(lab):
    twos, word, number, nothing, ones, error = lab.on_ranks(1).run(drivers.given_back)[0].value
    assert torch.equal(twos, torch.full((2,), 2.0)) and torch.equal(ones, torch.ones(2))
    assert (word, number, nothing) == ("word", 3, None)
    assert "modified by an inplace operation" in error
